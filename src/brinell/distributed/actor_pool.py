"""The pool of Ray actors: start workers, assign units, receive events, replace crashed workers.

Workers are Ray actors, not tasks. An actor builds the model, the device context and the kernels once and keeps them
for every unit. It also keeps its GPU for its whole life. A worker streams its reports while it works on a unit.
"""

import time
from collections.abc import Iterator
from typing import Any

from brinell.distributed.driver import Driver, WorkerDied, WorkerEvent, WorkerFinished, WorkerJoined, WorkerReported
from brinell.distributed.worker import Worker
from brinell.errors import error_text
from brinell.evaluation.backend import AttackJob, WorkUnit
from brinell.evaluation.rows import FinishedRows

# One thread of a worker attacks. The other receives the ids that other workers take over.
THREADS = 2


class RayBackend:
    """The executor for Ray: runs jobs one after another on the same workers."""

    def __init__(self, pool: "ActorPool", unit: int | None) -> None:
        self._pool, self._unit = pool, unit

    def run(self, job: AttackJob) -> Iterator[FinishedRows]:
        return Driver(job, self._pool, self._unit).run()


class ActorPool:
    """Ray actors numbered from 0; implements `brinell.distributed.driver.WorkerPool`."""

    def __init__(self, ray: Any, packed: bytes, count: int, kind: str, threads: int) -> None:
        self._ray, self._threads = ray, threads
        self._device = "cuda" if kind == "cuda" else None
        self.count = count
        # Each machine fetches the model once from Ray's object store.
        self._packed = ray.put(packed)
        gpu = kind == "cuda"
        self._class = ray.remote(Worker).options(
            num_cpus=1 if gpu else threads, num_gpus=1 if gpu else 0, max_concurrency=THREADS, max_restarts=0
        )
        self._actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}
        self._streams: dict[Any, int] = {}
        self._numbers = dict.fromkeys(range(count), 0)
        self.environments: dict[int, dict[str, Any]] = {}
        for worker in range(count):
            self.start(worker)

    def start(self, worker: int) -> None:
        self._forget(worker)
        self._actors[worker] = self._class.remote(self._packed, self._device, self._threads)
        self._starting[self._actors[worker].build_model.remote()] = worker

    def free(self) -> list[int]:
        for worker in list(self._streams.values()):
            self._ray.kill(self._actors[worker])
            self.start(worker)
        return sorted(self.environments)

    def assign(self, worker: int, unit: WorkUnit) -> None:
        self._numbers[worker] += 1
        method = self._actors[worker].work.options(num_returns="streaming")
        self._streams[method.remote(unit, self._numbers[worker])] = worker

    def drop(self, worker: int, ids: list[int]) -> None:
        self._actors[worker].drop.remote(self._numbers[worker], ids)

    def poll(self, seconds: float) -> list[WorkerEvent]:
        pending = [*self._starting, *self._streams]
        if not pending:
            time.sleep(seconds)
            return []
        first, _ = self._ray.wait(pending, num_returns=1, timeout=seconds)
        if not first:
            return []
        ready, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
        return [event for item in ready or first for event in self._events_of(item)]

    def _events_of(self, item: Any) -> Iterator[WorkerEvent]:
        errors = self._ray.exceptions
        worker = self._starting[item] if item in self._starting else self._streams[item]
        try:
            if item in self._starting:
                self.environments[worker] = self._ray.get(item)
                del self._starting[item]
                yield WorkerJoined(worker, self.environments[worker])
            else:
                yield WorkerReported(worker, self._ray.get(next(item)))
        except StopIteration:
            del self._streams[item]
            yield WorkerFinished(worker)
        except errors.RayTaskError as error:
            # An error in the user's model or data occurs on every worker. Raise it here as in one process.
            raise error.cause from error
        except errors.RayError as error:
            self._forget(worker)
            yield WorkerDied(worker, error_text(error))

    def _forget(self, worker: int) -> None:
        for pending in (self._starting, self._streams):
            for item in [k for k, w in pending.items() if w == worker]:
                del pending[item]
        self.environments.pop(worker, None)
        self._actors.pop(worker, None)

    def close(self) -> None:
        for worker, actor in list(self._actors.items()):
            self._ray.kill(actor)
            self._forget(worker)
