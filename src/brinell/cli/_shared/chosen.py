"""Make plans and backends from the options --plan, --attacks, --workers and --ray."""

from brinell.core.plan import Plan
from brinell.distributed.ray import GPU, Ray
from brinell.evaluation.backend import IN_PROCESS, Backend
from brinell.evaluation.coerce import as_plan


def plan(name: str, attacks: str | None) -> Plan:
    """Return the plan made of `attacks` (separated by commas) or, without attacks, the plan called `name`.

    >>> plan("autoattack", "apgd-ce,fab-t").name
    'custom'
    """
    return as_plan(attacks.split(",") if attacks else name)


def launcher(workers: str | None, ray: str | None) -> Backend:
    """Return a Ray backend if --workers or --ray (a cluster's address) is given, else the backend of this process."""
    return IN_PROCESS if workers is None and ray is None else Ray(workers=workers or GPU, address=ray)
