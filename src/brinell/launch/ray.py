"""Workers on Ray: every GPU of a machine, or of a cluster.

Actors, not tasks: a worker builds the model, its device context and its kernels once and keeps them for every unit,
and an actor holds its GPU from beginning to end. Reports come back as a stream while a unit is being done.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from brinell.errors import InputError, MissingExtra, RunError
from brinell.evaluate.chunks import Part
from brinell.evaluate.plan import Plan
from brinell.evaluate.stages import Setup
from brinell.evaluate.work import Crew, Job, Unit
from brinell.launch.drive import Died, Drive, Ended, Joined, News, Told
from brinell.launch.shipping import pack
from brinell.launch.worker import Worker

GPU = "gpu"
# Of a worker's two threads one works and one hears what others have taken over.
THREADS = 2
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
    def open(self, setup: Setup, plan: Plan) -> Iterator[Crew]:
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
                    got=f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}",
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


class RayCrew:
    """Does jobs with the same workers, one after another."""

    def __init__(self, hands: "RayHands", unit: int | None) -> None:
        self._hands, self._unit = hands, unit

    def parts(self, job: Job) -> Iterator[Part]:
        """Everything of the job, in the order in which it is finished."""
        return Drive(job, self._hands, self._unit).parts()


class RayHands:
    """Numbered places for actors; each actor is started, given units, listened to, and replaced when it dies."""

    def __init__(self, ray: Any, packed: bytes, count: int, kind: str, threads: int) -> None:
        self._ray, self._threads = ray, threads
        self._device = "cuda" if kind == "cuda" else None
        self.count = count
        # Once in the object store, from where every machine fetches it once.
        self._packed = ray.put(packed)
        gpu = kind == "cuda"
        self._class = ray.remote(Worker).options(
            num_cpus=1 if gpu else threads, num_gpus=1 if gpu else 0, max_concurrency=THREADS, max_restarts=0
        )
        self._actors: dict[int, Any] = {}
        self._hellos: dict[Any, int] = {}
        self._streams: dict[Any, int] = {}
        self._numbers = dict.fromkeys(range(count), 0)
        self.environments: dict[int, dict[str, Any]] = {}
        for worker in range(count):
            self.hire(worker)

    def hire(self, worker: int) -> None:
        """Start a worker anew."""
        self._forget(worker)
        self._actors[worker] = self._class.remote(self._packed, self._device, self._threads)
        self._hellos[self._actors[worker].hello.remote()] = worker

    def free(self) -> list[int]:
        """Those that are ready now; whoever still works for an earlier job is replaced."""
        for worker in list(self._streams.values()):
            self._ray.kill(self._actors[worker])
            self.hire(worker)
        return sorted(self.environments)

    def give(self, worker: int, unit: Unit) -> None:
        """Let a ready worker do a unit."""
        self._numbers[worker] += 1
        method = self._actors[worker].work.options(num_returns="streaming")
        self._streams[method.remote(unit, self._numbers[worker])] = worker

    def drop(self, worker: int, ids: list[int]) -> None:
        """Tell a worker that others do these samples of its unit."""
        self._actors[worker].drop.remote(self._numbers[worker], ids)

    def poll(self, seconds: float) -> list[News]:
        """What has happened; waits for something to happen at most so long."""
        pending = [*self._hellos, *self._streams]
        if not pending:
            time.sleep(seconds)
            return []
        first, _ = self._ray.wait(pending, num_returns=1, timeout=seconds)
        if not first:
            return []
        ready, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
        return [news for item in ready or first for news in self._hear(item)]

    def _hear(self, item: Any) -> Iterator[News]:
        errors = self._ray.exceptions
        worker = self._hellos[item] if item in self._hellos else self._streams[item]
        try:
            if item in self._hellos:
                self.environments[worker] = self._ray.get(item)
                del self._hellos[item]
                yield Joined(worker, self.environments[worker])
            else:
                yield Told(worker, self._ray.get(next(item)))
        except StopIteration:
            del self._streams[item]
            yield Ended(worker)
        except errors.RayTaskError as error:
            # What went wrong in the user's model or data goes wrong everywhere: told as if it had happened here.
            raise error.cause from error
        except errors.RayError as error:
            self._forget(worker)
            yield Died(worker, f"{type(error).__name__}: {str(error).splitlines()[0]}")

    def _forget(self, worker: int) -> None:
        for pending in (self._hellos, self._streams):
            for item in [k for k, w in pending.items() if w == worker]:
                del pending[item]
        self.environments.pop(worker, None)
        self._actors.pop(worker, None)

    def close(self) -> None:
        """Let all workers go, whatever they are doing."""
        for worker, actor in list(self._actors.items()):
            self._ray.kill(actor)
            self._forget(worker)
