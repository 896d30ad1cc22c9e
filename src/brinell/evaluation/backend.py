"""Backends, which compute the attacks of an evaluation: their protocol, and the backend that runs in this process.

`brinell.distributed` has the backend for Ray.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from brinell.core.dataset import Chunk
from brinell.core.plan import Plan, Stages
from brinell.core.threat import Threat
from brinell.engine.events import Listener, silent
from brinell.errors import InputError
from brinell.evaluation.audit import attacked
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean, FinishedRows, clean
from brinell.evaluation.run_plan import run_plan
from brinell.results import CLEAN
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes


@dataclass(frozen=True)
class WorkUnit:
    """Samples for a worker, with their threat and stored outcomes; `run_plan` explains `individual` and `reach`."""

    chunk: Chunk
    threat: Threat
    known: StoredOutcomes = NOTHING_STORED
    individual: bool = False
    reach: float = 0.0


@dataclass(frozen=True)
class AttackJob:
    """The attacks that one evaluation still has to run, for an executor.

    `read` yields the chunks with their stored outcomes, `clean` returns the clean predictions of a chunk. The executor
    appends the environment of every worker to `workers`, and every block size reduced for lack of memory to `shrunk`.
    """

    context: StageContext
    plan: Plan
    read: Callable[[], Iterator[tuple[Chunk, StoredOutcomes]]]
    clean: Callable[[Chunk], Clean]
    total: int
    shape: tuple[int, ...]
    individual: bool = False
    reach: float = 0.0
    listener: Listener = silent
    workers: list[dict[str, Any]] = field(default_factory=list)
    shrunk: list[int] = field(default_factory=list)

    @property
    def stages(self) -> Stages:
        return self.plan.stages_for(self.context.threat)


@runtime_checkable
class Executor(Protocol):
    """An object that runs the attacks of a job; `Backend.open` returns it."""

    def run(self, job: AttackJob) -> Iterator[FinishedRows]:
        """Run the attacks and yield the rows that are not stored yet, in any order, each row once."""


@runtime_checkable
class Backend(Protocol):
    """A way to compute the attacks of an evaluation: in this process or on other workers."""

    @property
    def device(self) -> torch.device | None:
        """The type of device that runs the attacks; None means the model's device."""

    def open(self, context: StageContext, plan: Plan) -> AbstractContextManager[Executor]:
        """Return an executor that is ready to run; raise an error if it cannot run, before any file is written."""


def require_backend(launch: Any) -> None:
    """Raise an InputError unless `launch` is a `Backend`."""
    if not isinstance(launch, Backend):
        raise InputError(
            expected="a backend as launch", got=repr(launch)[:80], remedy="Pass e.g. launch=brinell.distributed.Ray(2)."
        )


class InProcess:
    """The default backend: runs the attacks in this process, one chunk after another."""

    device = None

    @contextmanager
    def open(self, context: StageContext, plan: Plan) -> Iterator[Executor]:
        yield self

    def run(self, job: AttackJob) -> Iterator[FinishedRows]:
        for chunk, known in job.read():
            c = job.clean(chunk)
            yield from run_plan(job.context, job.plan, c, known, individual=job.individual, reach=job.reach)
            del chunk, c, known  # free before the next chunk is read


IN_PROCESS = InProcess()


def run_unit(
    context: StageContext, plan: Plan, unit: WorkUnit, dropped: Collection[int] = ()
) -> Iterator[FinishedRows]:
    """Run, on the samples of a unit, the stages whose outcomes are not stored yet; yield rows as samples finish.

    Samples whose ids are in `dropped` are skipped; an id added during a stage is skipped from the next stage on.
    """
    context = replace(context, threat=unit.threat)
    x = unit.chunk.x.to(context.oracle.classifier.device)
    c = clean(unit.chunk, [context.oracle.output(x, named=unit.chunk.ids) for _ in range(context.draws)])
    yield from run_plan(context, plan, c, unit.known, individual=unit.individual, reach=unit.reach, dropped=dropped)


def unfinished(
    stages: Stages, seed: int, ids: Tensor, known: StoredOutcomes, *, individual: bool = False, reach: float = 0.0
) -> list[bool]:
    """Return for every sample whether its clean pass or an attack has no stored outcome and remains to be run.

    >>> from brinell import Linf
    >>> from brinell.attacks.catalogue import by_name
    >>> known = StoredOutcomes({"clean": {1: False, 2: True, 3: False}, "fgsm-ce": {3: True}})
    >>> unfinished(by_name("fgsm").stages_for(Linf(0.1)), 0, torch.tensor([0, 1, 2, 3]), known)
    [True, True, False, False]
    """
    names = ids.tolist()
    todo = ~np.asarray(known.seen(CLEAN, names), dtype=bool)
    standing = ~todo & ~np.asarray(known.fell(CLEAN, names), dtype=bool)
    left = known.least_left([s.name for s in stages if not s.is_audit], names)
    for stage in stages:
        chosen = attacked(stage, seed, ids, left, reach).numpy()
        todo |= standing & chosen & ~np.asarray(known.seen(stage.name, names), dtype=bool)
        if not individual:
            standing &= ~np.asarray(known.fell(stage.name, names), dtype=bool)
    return [bool(v) for v in todo]
