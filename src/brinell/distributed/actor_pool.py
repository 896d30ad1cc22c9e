"""Ray's actors as the driver sees them: hired, given units, listened to, replaced.

Actors, not tasks: a worker builds the model, its device context and its kernels once and keeps them for every unit,
and an actor holds its GPU from beginning to end. Reports come back as a stream while a unit is being done.
"""

import time
from collections.abc import Iterator
from typing import Any

from brinell.distributed.driver import Died, Drive, Ended, Joined, News, Told
from brinell.distributed.worker import Worker
from brinell.errors import told
from brinell.evaluation.backend import Job, Unit
from brinell.evaluation.run_plan import Part

# Of a worker's two threads one works and one hears what others have taken over.
THREADS = 2


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
            yield Died(worker, told(error))

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
