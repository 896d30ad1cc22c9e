"""Work as it is handed out: units of samples, who does them, and what of them is still to be done.

A launcher decides where units are computed. The one here does everything in this process; others live above.
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
from brinell.evaluation.audit import in_audit
from brinell.evaluation.rows import Clean, clean
from brinell.evaluation.run_plan import FinishedRows, run_plan
from brinell.evaluation.run_stage import StageContext
from brinell.results import CLEAN
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes


@dataclass(frozen=True)
class WorkUnit:
    """Samples with their threat and what is known of them: all that a worker who has the setup needs to know."""

    chunk: Chunk
    threat: Threat
    known: StoredOutcomes = NOTHING_STORED
    individual: bool = False
    everyone: bool = False


@dataclass(frozen=True)
class AttackJob:
    """An evaluation for a launcher: what stays the same, the samples as they are read, and who listens.

    `workers` and `shrunk` are filled in by the launcher: where the work was done, and to how many rows at a time the
    questions to the model had to be cut.
    """

    context: StageContext
    plan: Plan
    read: Callable[[], Iterator[tuple[Chunk, StoredOutcomes]]]
    clean: Callable[[Chunk], Clean]
    total: int
    shape: tuple[int, ...]
    individual: bool = False
    everyone: bool = False
    listener: Listener = silent
    workers: list[dict[str, Any]] = field(default_factory=list)
    shrunk: list[int] = field(default_factory=list)

    @property
    def stages(self) -> Stages:
        """The stages of the plan."""
        return self.plan.stages_for(self.context.threat)


@runtime_checkable
class Executor(Protocol):
    """Somebody who does jobs."""

    def parts(self, job: AttackJob) -> Iterator[FinishedRows]:
        """Everything of the job that is still to be done, in any order, each row once."""


@runtime_checkable
class Backend(Protocol):
    """Where an evaluation is computed."""

    @property
    def device(self) -> torch.device | None:
        """The kind of device the work is done on; None: wherever the model is."""

    def open(self, context: StageContext, plan: Plan) -> AbstractContextManager[Executor]:
        """A crew that is ready to work; refuses what cannot be launched before anything is written."""


class InProcess:
    """Does everything here and now, chunk by chunk."""

    device = None

    @contextmanager
    def open(self, context: StageContext, plan: Plan) -> Iterator[Executor]:
        """This process is ready."""
        yield self

    def parts(self, job: AttackJob) -> Iterator[FinishedRows]:
        """The chunks in the order of the problem."""
        for chunk, known in job.read():
            c = job.clean(chunk)
            yield from run_plan(job.context, job.plan, c, known, individual=job.individual, everyone=job.everyone)


IN_PROCESS = InProcess()


def run_unit(
    context: StageContext, plan: Plan, unit: WorkUnit, dropped: Collection[int] = ()
) -> Iterator[FinishedRows]:
    """Everything the plan does to the samples of a unit beyond what is known of them, part by part.

    What is put into `dropped` while this runs is left out of the stages that begin later.
    """
    context = replace(context, threat=unit.threat)
    x = unit.chunk.x.to(context.oracle.classifier.device)
    c = clean(unit.chunk, [context.oracle.output(x) for _ in range(context.draws)])
    yield from run_plan(
        context, plan, c, unit.known, individual=unit.individual, everyone=unit.everyone, dropped=dropped
    )


def unfinished(
    stages: Stages, seed: int, ids: Tensor, known: StoredOutcomes, *, individual: bool = False, everyone: bool = False
) -> list[bool]:
    """For every sample, whether the plan still has something to do to it, given what is known.

    >>> from brinell import Linf
    >>> from brinell.attacks.catalogue import by_name
    >>> known = StoredOutcomes({"clean": {1: False, 2: True, 3: False}, "fgsm-ce": {3: True}})
    >>> unfinished(by_name("fgsm").stages_for(Linf(0.1)), 0, torch.tensor([0, 1, 2, 3]), known)
    [True, True, False, False]
    """
    names = ids.tolist()
    left = ~np.asarray(known.seen(CLEAN, names), dtype=bool)
    standing = ~left & ~np.asarray(known.fell(CLEAN, names), dtype=bool)
    for stage in stages:
        chosen = np.ones(len(names), dtype=bool)
        if not everyone:
            chosen = in_audit(seed, ids, stage.sampled_share).numpy()
        left |= standing & chosen & ~np.asarray(known.seen(stage.name, names), dtype=bool)
        if not individual:
            standing &= ~np.asarray(known.fell(stage.name, names), dtype=bool)
    return [bool(v) for v in left]
