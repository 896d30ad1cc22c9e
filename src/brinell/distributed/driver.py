"""The driver: assign units to workers, receive their rows, replace crashed workers. Independent of Ray."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from brinell.core.plan import Stages
from brinell.distributed.sample_ledger import SampleLedger
from brinell.distributed.scheduler import UnitScheduler
from brinell.distributed.worker import WorkerReport
from brinell.engine.events import Note, Progress, Shrunk, StageStarted
from brinell.environment import version
from brinell.errors import RunError
from brinell.evaluation.backend import AttackJob, WorkUnit
from brinell.evaluation.rows import FinishedRows

# Bytes of inputs per unit. The driver keeps them in memory until the unit is finished.
UNIT_BYTES = 1 << 27
# A worker that crashes this often without a report in between is not started again.
MAX_CRASHES = 3
# Seconds between two checks for idle workers, and seconds without any worker until the user is notified.
TICK, PATIENCE = 0.25, 60.0
# Fields of a worker's environment that the manifest leaves out.
NOT_STORED = ("pid", "git_commit")


class WorkerJoined(NamedTuple):
    """Event: a worker has built the model and is ready; `environment` holds its versions and hardware."""

    worker: int
    environment: dict[str, Any]


class WorkerReported(NamedTuple):
    """Event: a worker has sent a report with rows of its unit."""

    worker: int
    report: WorkerReport


class WorkerFinished(NamedTuple):
    """Event: a worker has finished its unit."""

    worker: int


class WorkerDied(NamedTuple):
    """Event: a worker crashed or was killed."""

    worker: int
    error: str


WorkerEvent = WorkerJoined | WorkerReported | WorkerFinished | WorkerDied


@runtime_checkable
class WorkerPool(Protocol):
    """The protocol of a pool of workers, numbered from 0."""

    @property
    def count(self) -> int:
        """The number of workers requested."""

    def free(self) -> list[int]:
        """Replace workers that still work for an earlier job, and return the numbers of all ready workers."""

    def assign(self, worker: int, unit: WorkUnit) -> None:
        """Send a unit to a ready worker."""

    def drop(self, worker: int, ids: list[int]) -> None:
        """Tell a worker that another worker took over these samples of its unit."""

    def start(self, worker: int) -> None:
        """Start a new worker with the number of a crashed worker."""

    def poll(self, seconds: float) -> list[WorkerEvent]:
        """Return new events; wait at most `seconds` for the first one."""


@dataclass
class Driver:
    """The driver of one job on many workers; `run` is its main loop."""

    job: AttackJob
    pool: WorkerPool
    fixed: int | None = None
    clock: Callable[[], float] = time.monotonic
    idle: set[int] = field(default_factory=set)
    crashes: dict[int, int] = field(default_factory=dict)
    shown: Progress | None = None

    def __post_init__(self) -> None:
        job, pool = self.job, self.pool
        self.ledger = SampleLedger(job)
        sample = 4 * int(np.prod(job.shape))
        self.scheduler = UnitScheduler(
            self.ledger.samples(),
            job.total,
            pool.count,
            block=job.context.oracle.block,
            largest=UNIT_BYTES // sample,
            fixed=self.fixed,
            # Two workers get different outputs from a randomised model, so their rows must not be mixed.
            overlap=job.context.draws == 1,
        )

    def run(self) -> Iterator[FinishedRows]:
        """Run the job and yield every row once, in the order of arrival."""
        self.job.listener(StageStarted(self.job.plan.name, self.job.total, _queries(self.job.stages)))
        self.idle |= set(self.pool.free())
        started, notified = self.clock(), bool(self.idle)
        while True:
            self._assign_units()
            if self.scheduler.done:
                break
            for event in self.pool.poll(TICK):
                notified = notified or isinstance(event, WorkerJoined)
                yield from self._handle(event)
            if not notified and self.clock() - started > PATIENCE:
                self.job.listener(Note("Waiting for workers: the cluster has not started any yet."))
                notified = True
        self._report_progress()

    def _assign_units(self) -> None:
        for worker in sorted(self.idle):
            lease = self.scheduler.lease(worker, self.clock())
            if lease is None:
                return
            self.idle.remove(worker)
            self.pool.assign(worker, self.ledger.unit(lease.samples))
            if lease.taken_from is not None:
                self.pool.drop(lease.taken_from, list(lease.samples))

    def _handle(self, event: WorkerEvent) -> Iterator[FinishedRows]:
        if isinstance(event, WorkerReported):
            self.crashes[event.worker] = 0
            yield from self._accept(event.report)
        elif isinstance(event, WorkerJoined):
            self._join(event)
        elif isinstance(event, WorkerFinished):
            self.ledger.release(self.scheduler.end(event.worker, self.clock()))
            self.idle.add(event.worker)
            self._report_progress()
        else:
            self._replace(event)

    def _accept(self, report: WorkerReport) -> Iterator[FinishedRows]:
        for block in report.shrunk:
            self.job.shrunk.append(block)
            self.job.listener(Shrunk(block))
        part, finished = (None, []) if report.part is None else self.ledger.accept(report.part)
        if part is not None:
            yield part
            # The caller has stored the rows by now, so their samples count as finished.
            self.scheduler.finish(finished)
            self.ledger.release(finished)
            self._report_progress()

    def _join(self, event: WorkerJoined) -> None:
        worker_version = event.environment.get("brinell")
        if worker_version != version():
            raise RunError(
                expected=f"Brinell {version()} on every worker",
                got=f"version {worker_version} on a worker",
                remedy=f"Install the same version on every machine: pip install brinell=={version()}.",
            )
        self.job.workers.append({k: v for k, v in event.environment.items() if k not in NOT_STORED})
        self.idle.add(event.worker)

    def _replace(self, event: WorkerDied) -> None:
        self.scheduler.lose(event.worker)
        self.idle.discard(event.worker)
        self.crashes[event.worker] = self.crashes.get(event.worker, 0) + 1
        if self.crashes[event.worker] < MAX_CRASHES:
            self.pool.start(event.worker)
        elif all(self.crashes.get(w, 0) >= MAX_CRASHES for w in range(self.pool.count)):
            raise RunError(
                expected="workers that produce results",
                got=f"{MAX_CRASHES} crashes in a row of every worker without a result (last error: {event.error})",
                remedy="The usual cause is lack of memory: use fewer workers per machine or fewer slots, then resume.",
            )

    def _report_progress(self) -> None:
        now = Progress(self.job.plan.name, self.ledger.finished, self.ledger.broken, self.ledger.forwards)
        if now != self.shown:
            self.job.listener(now)
            self.shown = now


def _queries(stages: Stages) -> int:
    """Return the largest number of forward passes that the stages make per sample."""
    return sum(s.attack.queries * len(s.attempts()) * s.eot + s.ranking_passes[0] for s in stages)
