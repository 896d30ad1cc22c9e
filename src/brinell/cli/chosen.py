"""What options that several verbs share stand for."""

from brinell.evaluate.inputs import as_plan
from brinell.evaluate.plan import Plan
from brinell.evaluate.presets import chain
from brinell.evaluate.work import IN_PROCESS, Launcher
from brinell.launch.ray import GPU, Ray


def plan(name: str, attacks: str | None) -> Plan:
    """The chain of --attacks, or else the plan of that name.

    >>> [s.name for s in plan("autoattack", "apgd-ce,fab-t").stages]
    ['apgd-ce', 'fab-t']
    """
    return chain(attacks.split(",")) if attacks else as_plan(name)


def launcher(workers: str | None, ray: str | None) -> Launcher:
    """Ray with the --workers, at the address --ray, where one of them is given; else this process."""
    return IN_PROCESS if workers is None and ray is None else Ray(workers=workers or GPU, address=ray)
