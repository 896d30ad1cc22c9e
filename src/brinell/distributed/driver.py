"""The driver: hands out units, takes in reports, survives the death of workers. Knows no Ray."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from brinell.core.plan import Plan
from brinell.distributed.sample_ledger import Desk
from brinell.distributed.scheduler import Scheduler
from brinell.distributed.worker import Report
from brinell.engine.events import Note, Progress, Shrunk, StageStarted
from brinell.environment import version
from brinell.errors import RunError
from brinell.evaluation.backend import Job, Unit
from brinell.evaluation.run_plan import Part

# Inputs of one unit: what a worker is sent at a time and the driver keeps until it is done.
UNIT_BYTES = 1 << 27
# A worker that dies this often without having reported anything in between is not started again.
STRIKES = 3
# Seconds between two looks at workers that have nothing to do, and until the user is told that there are none.
TICK, PATIENCE = 0.25, 60.0
# What says nothing about where the work was done.
OWN = ("pid", "git_commit")


@dataclass(frozen=True)
class Joined:
    """A worker is ready, in this environment."""

    worker: int
    environment: dict[str, Any]


@dataclass(frozen=True)
class Told:
    """A worker reports."""

    worker: int
    report: Report


@dataclass(frozen=True)
class Ended:
    """A worker is through with its unit."""

    worker: int


@dataclass(frozen=True)
class Died:
    """A worker is gone."""

    worker: int
    why: str


News = Joined | Told | Ended | Died


@runtime_checkable
class Hands(Protocol):
    """Workers, numbered from 0."""

    @property
    def count(self) -> int:
        """How many there should be."""

    def free(self) -> list[int]:
        """Those that are ready now; whoever still works for an earlier job is replaced."""

    def give(self, worker: int, unit: Unit) -> None:
        """Let a ready worker do a unit."""

    def drop(self, worker: int, ids: list[int]) -> None:
        """Tell a worker that others do these samples of its unit."""

    def hire(self, worker: int) -> None:
        """Start a worker anew in the place of one that died."""

    def poll(self, seconds: float) -> list[News]:
        """What has happened; waits for something to happen at most so long."""


@dataclass
class Drive:
    """One job on many workers; `parts` is the loop."""

    job: Job
    hands: Hands
    fixed: int | None = None
    clock: Callable[[], float] = time.monotonic
    idle: set[int] = field(default_factory=set)
    strikes: dict[int, int] = field(default_factory=dict)
    shown: Progress | None = None

    def __post_init__(self) -> None:
        job, hands = self.job, self.hands
        self.desk = Desk(job)
        sample = 4 * int(np.prod(job.shape))
        self.scheduler = Scheduler(
            self.desk.samples(),
            job.total,
            hands.count,
            block=job.setup.oracle.block,
            largest=UNIT_BYTES // sample,
            fixed=self.fixed,
            # Two answers of a randomised model differ, and rows of both would not fit together.
            overlap=job.setup.draws == 1,
        )

    def parts(self) -> Iterator[Part]:
        """Rows in the order in which they come, each once."""
        self.job.listener(StageStarted(self.job.plan.name, self.job.total, _queries(self.job.plan)))
        self.idle |= set(self.hands.free())
        begun, told = self.clock(), bool(self.idle)
        while True:
            self._hand_out()
            if self.scheduler.done:
                break
            for news in self.hands.poll(TICK):
                told = told or isinstance(news, Joined)
                yield from self._take(news)
            if not told and self.clock() - begun > PATIENCE:
                self.job.listener(Note("Waiting for workers: the cluster has not given any yet."))
                told = True
        self._progress()

    def _hand_out(self) -> None:
        for worker in sorted(self.idle):
            lease = self.scheduler.lease(worker, self.clock())
            if lease is None:
                return
            self.idle.remove(worker)
            self.hands.give(worker, self.desk.unit(lease.samples))
            if lease.victim is not None:
                self.hands.drop(lease.victim, list(lease.samples))

    def _take(self, news: News) -> Iterator[Part]:
        if isinstance(news, Told):
            self.strikes[news.worker] = 0
            yield from self._report(news.report)
        elif isinstance(news, Joined):
            self._join(news)
        elif isinstance(news, Ended):
            self.desk.release(self.scheduler.end(news.worker, self.clock()))
            self.idle.add(news.worker)
            self._progress()
        else:
            self._bury(news)

    def _report(self, report: Report) -> Iterator[Part]:
        for block in report.shrunk:
            self.job.shrunk.append(block)
            self.job.listener(Shrunk(block))
        part, finished = (None, []) if report.part is None else self.desk.accept(report.part)
        if part is not None:
            yield part
            # Only now, when the part has been stored, are its samples done.
            self.scheduler.finish(finished)
            self.desk.release(finished)
            self._progress()

    def _join(self, news: Joined) -> None:
        theirs = news.environment.get("brinell")
        if theirs != version():
            raise RunError(
                expected=f"Brinell {version()} on every worker",
                got=f"{theirs} on one",
                remedy="Install the same version everywhere.",
            )
        self.job.workers.append({k: v for k, v in news.environment.items() if k not in OWN})
        self.idle.add(news.worker)

    def _bury(self, news: Died) -> None:
        self.scheduler.lose(news.worker)
        self.idle.discard(news.worker)
        self.strikes[news.worker] = self.strikes.get(news.worker, 0) + 1
        if self.strikes[news.worker] < STRIKES:
            self.hands.hire(news.worker)
        elif all(self.strikes.get(w, 0) >= STRIKES for w in range(self.hands.count)):
            raise RunError(
                expected="workers that live",
                got=f"{STRIKES} deaths of each without a result in between ({news.why})",
                remedy="Most often memory ran out: use fewer workers per machine or fewer slots, then resume.",
            )

    def _progress(self) -> None:
        now = Progress(self.job.plan.name, self.desk.finished, self.desk.broken, self.desk.forwards)
        if now != self.shown:
            self.job.listener(now)
            self.shown = now


def _queries(plan: Plan) -> int:
    """Passes a sample costs at most."""
    own = (s.attack.queries * len(s.attempts()) * s.eot for s in plan.stages)
    return sum(own) + sum(s.ranking_passes[0] for s in plan.stages)
