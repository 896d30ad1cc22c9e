"""The Ray launcher: connect to a cluster or start a local cluster, and run an evaluation on its workers."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from brinell.core.plan import Plan
from brinell.distributed.actor_pool import ActorPool, RayBackend
from brinell.distributed.serialize_model import serialize
from brinell.errors import InputError, RunError, import_extra, reported_as
from brinell.evaluation.backend import Executor
from brinell.evaluation.context import StageContext

GPU = "gpu"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}


@dataclass(frozen=True)
class Ray:
    """A launcher that runs an evaluation on Ray workers: `brinell.evaluate(..., launch=Ray(workers=2))`.

    `workers` is a number of CPU processes, "gpu" for one worker per GPU, or "gpu:4" for four GPU workers. `address`
    is the address of a running cluster (default: the variable RAY_ADDRESS). Without an address, a local cluster is
    started and stopped. `threads` is the number of threads per worker (default: as in this process). `unit` fixes
    the number of samples per unit of work; by default units are large at first and become smaller towards the end.

    >>> Ray(workers="gpu:4").device
    device(type='cuda')
    >>> Ray(workers=0)
    Traceback (most recent call last):
    brinell.errors.InputError: expected a number of workers, gpu, or gpu:N, got 0. Write workers=4 or workers="gpu".
    """

    workers: int | str = GPU
    address: str | None = None
    threads: int | None = None
    unit: int | None = None

    def __post_init__(self) -> None:
        kind, number = self._requested()
        valid = kind is not None and (number is None or number >= 1)
        if not valid or isinstance(self.workers, bool):
            raise InputError(
                expected="a number of workers, gpu, or gpu:N",
                got=f"{self.workers}",
                remedy='Write workers=4 or workers="gpu".',
            )
        for name, value in (("threads", self.threads), ("unit", self.unit)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(expected=f"{name} of at least 1", got=f"{value}", remedy=f"Omit {name}.")
        if (self.address or "").startswith("ray://"):
            raise InputError(
                expected="the address of a cluster this machine belongs to",
                got=f"{self.address}, which is for clients outside the cluster",
                remedy="Run on the head node with address='auto', e.g. by ray job submit.",
            )

    def _requested(self) -> tuple[str | None, int | None]:
        """Return the device type (None: invalid `workers`) and the number of workers (None: one per GPU)."""
        if isinstance(self.workers, int):
            return "cpu", self.workers
        kind, colon, number = self.workers.partition(":")
        if kind == GPU and (not colon or number.isdecimal()):
            return "cuda", int(number) if colon else None
        return ("cpu", int(self.workers)) if self.workers.isdecimal() else (None, None)

    @property
    def device(self) -> torch.device:
        """The device type that the workers use."""
        return torch.device(self._requested()[0] or "cpu")

    @contextmanager
    def open(self, context: StageContext, plan: Plan) -> Iterator[Executor]:
        """Connect to a cluster or start a cluster, send the model, start the workers, and stop them at the end."""
        ray = import_extra("ray", "ray", "the package ray, which runs several workers")
        device = context.oracle.classifier.device
        if device.type != "cpu" and self.device.type == "cpu":
            raise InputError(
                expected="workers on the same device type as the model",
                got=f"workers on the CPU and a model on {device}",
                remedy="Use workers='gpu', or move the model: net.cpu().",
            )
        threads = self.threads or torch.get_num_threads()
        packed, local = serialize(context, plan), self._local(ray, threads)
        with _connected(ray, self.address, local):
            count = self._count(ray)
            pool = ActorPool(ray, packed, count, self.device.type, threads)
            try:
                yield RayBackend(pool, self.unit)
            finally:
                pool.close()

    def _local(self, ray: Any, threads: int) -> dict[str, Any] | None:
        """Return ray.init's resources for a new local cluster, or None to use an existing cluster."""
        kind, number = self._requested()
        if ray.is_initialized() or self.address or os.environ.get("RAY_ADDRESS"):
            return None
        if kind == "cpu":
            return {"num_cpus": (number or 1) * threads, "num_gpus": 0}
        available = torch.cuda.device_count()
        _require_gpus(available, number or 1)
        return {"num_cpus": number or available, "num_gpus": available}

    def _count(self, ray: Any) -> int:
        """Return the number of workers. A cluster may still grow, so a requested number is not checked."""
        kind, number = self._requested()
        if kind == "cuda" and number is None:
            number = int(ray.cluster_resources().get("GPU", 0))
            _require_gpus(number, 1)
        return number or 1


def _require_gpus(available: int, wanted: int) -> None:
    if available < wanted:
        raise InputError(
            expected=f"{wanted} GPU{'s' * (wanted > 1)} or more",
            got=f"{available or 'no'} GPU{'s' * (available != 1)}",
            remedy="Use workers=N for N processes on the CPU, or pass the address= of a cluster with GPUs.",
        )


@contextmanager
def _connected(ray: Any, address: str | None, local: dict[str, Any] | None) -> Iterator[None]:
    """Use this process's connection to Ray, or connect to a running or a new local cluster and disconnect on exit."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if local is None:
        options |= {"address": address or os.environ["RAY_ADDRESS"]}
    else:
        options |= {"address": "local", "include_dashboard": False, **local}
    with ExitStack() as stack:
        stack.enter_context(_silenced())
        with _variables({**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}):
            expected = f"a Ray cluster at {options['address']}"
            remedy = "Check the address and that `ray status` works on this machine."
            with reported_as(RunError, OSError, RuntimeError, ValueError, expected=expected, remedy=remedy):
                ray.init(**options)
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes started in the with block, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep Ray from writing to the terminal. The driver reports crashes itself."""
    import ray._private.worker as core

    logger = logging.getLogger("ray")
    level, printer = logger.level, getattr(core, "print_to_stdstream", None)
    logger.setLevel(logging.ERROR)
    if printer is not None:
        core.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        logger.setLevel(level)
        if printer is not None:
            core.print_to_stdstream = printer
