"""Workers on Ray: every GPU of a machine, or of a cluster."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from brinell.core.plan import Plan
from brinell.distributed.actor_pool import RayCrew, RayHands
from brinell.distributed.serialize_model import pack
from brinell.errors import InputError, MissingExtra, RunError, told
from brinell.evaluation.backend import Crew
from brinell.evaluation.run_stage import StageContext

GPU = "gpu"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra(
            expected="the package ray for several workers",
            got="an installation without it",
            remedy="Install it: pip install 'brinell[ray]'.",
        ) from None
    return ray


@dataclass(frozen=True)
class Ray:
    """Launches an evaluation on Ray workers, for `brinell.evaluate(..., launch=Ray(workers=2))`.

    `workers` is a number of processes on the CPU, "gpu" for one worker per GPU, or "gpu:4" for four of them. `address`
    is that of a running cluster (default: the variable RAY_ADDRESS); without one a local cluster is started and
    stopped. `threads` per worker are the driver's unless given. `unit` fixes the number of samples handed out at a
    time; without it the units are large at first and small at the end.

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
        kind, number = self._asked()
        sound = kind is not None and (number is None or number >= 1)
        if not sound or isinstance(self.workers, bool):
            raise InputError(
                expected="a number of workers, gpu, or gpu:N",
                got=f"{self.workers}",
                remedy='Write workers=4 or workers="gpu".',
            )
        for name in ("threads", "unit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(expected=f"{name} of at least 1", got=f"{value}", remedy="Leave it out.")
        if (self.address or "").startswith("ray://"):
            raise InputError(
                expected="the address of a cluster this machine belongs to",
                got=f"{self.address}, a remote client's",
                remedy="Run on the head node with address='auto', e.g. by ray job submit.",
            )

    def _asked(self) -> tuple[str | None, int | None]:
        """The kind of device and the number; None: as many as there are."""
        if isinstance(self.workers, int):
            return "cpu", self.workers
        kind, colon, number = self.workers.partition(":")
        if kind == GPU and (not colon or number.isdecimal()):
            return "cuda", int(number) if colon else None
        return ("cpu", int(self.workers)) if self.workers.isdecimal() else (None, None)

    @property
    def device(self) -> torch.device:
        """The kind of device the workers use."""
        return torch.device(self._asked()[0] or "cpu")

    @contextmanager
    def open(self, setup: StageContext, plan: Plan) -> Iterator[Crew]:
        """Connect or start a cluster, ship the model, start the workers; they go, and what was started stops, after."""
        ray = _ray()
        home = setup.oracle.classifier.device
        if home.type != "cpu" and self.device.type == "cpu":
            raise InputError(
                expected="workers with the device of the model",
                got=f"workers on the CPU and a model on {home}",
                remedy="Use workers='gpu', or move the model to the CPU.",
            )
        threads = self.threads or torch.get_num_threads()
        packed, local = pack(setup, plan), self._local(ray, threads)
        with _connected(ray, self.address, local):
            count = self._count(ray)
            hands = RayHands(ray, packed, count, self.device.type, threads)
            try:
                yield RayCrew(hands, self.unit)
            finally:
                hands.close()

    def _local(self, ray: Any, threads: int) -> dict[str, Any] | None:
        """What a cluster of our own must have; None where there is one already."""
        kind, number = self._asked()
        if ray.is_initialized() or self.address or os.environ.get("RAY_ADDRESS"):
            return None
        if kind == "cpu":
            return {"num_cpus": (number or 1) * threads, "num_gpus": 0}
        there = torch.cuda.device_count()
        _refuse_missing(there, number or 1)
        return {"num_cpus": number or there, "num_gpus": there}

    def _count(self, ray: Any) -> int:
        """How many workers there will be; a cluster may grow, so it need not have all the GPUs asked for yet."""
        kind, number = self._asked()
        if kind == "cuda" and number is None:
            number = int(ray.cluster_resources().get("GPU", 0))
            _refuse_missing(number, 1)
        return number or 1


def _refuse_missing(there: int, wanted: int) -> None:
    if there < wanted:
        raise InputError(
            expected=f"{wanted} GPU{'s' * (wanted > 1)} or more",
            got=f"{there or 'none'}",
            remedy="Use a number of workers for processes on the CPU, or the address of a cluster with GPUs.",
        )


@contextmanager
def _connected(ray: Any, address: str | None, local: dict[str, Any] | None) -> Iterator[None]:
    """A connection to Ray: the one this process has, one to a running cluster, or a cluster of our own."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if local is None:
        options |= {"address": address or os.environ["RAY_ADDRESS"]}
    else:
        options |= {"address": "local", "include_dashboard": False, **local}
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        with _variables({**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}):
            try:
                ray.init(**options)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise RunError(
                    expected=f"a Ray cluster at {options['address']}",
                    got=told(error),
                    remedy="Check the address and that `ray status` works on this machine.",
                ) from error
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that the processes started inside inherit; the caller's come back."""
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
def _quiet() -> Iterator[None]:
    """Ray says nothing on the terminal: deaths of workers are our business, and standard output is the user's."""
    import ray._private.worker as core

    logger = logging.getLogger("ray")
    level, say = logger.level, getattr(core, "print_to_stdstream", None)
    logger.setLevel(logging.ERROR)
    if say is not None:
        core.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        logger.setLevel(level)
        if say is not None:
            core.print_to_stdstream = say
