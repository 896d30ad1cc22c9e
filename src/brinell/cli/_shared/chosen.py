"""What options that several verbs share stand for."""

from brinell.core.plan import Plan
from brinell.distributed.ray import GPU, Ray
from brinell.evaluation.backend import IN_PROCESS, Backend
from brinell.evaluation.coerce import as_plan


def plan(name: str, attacks: str | None) -> Plan:
    """The chain of --attacks, or else the plan of that name.

    >>> plan("autoattack", "apgd-ce,fab-t").name
    'custom'
    """
    return as_plan(attacks.split(",") if attacks else name)


def launcher(workers: str | None, ray: str | None) -> Backend:
    """Ray with the --workers, at the address --ray, where one of them is given; else this process."""
    return IN_PROCESS if workers is None and ray is None else Ray(workers=workers or GPU, address=ray)
