"""A plan on one chunk of samples: parts of a Run, made without knowing who stores them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.plan import Plan, Stage
from brinell.engine.precision import FLOAT32
from brinell.evaluation.audit import in_audit
from brinell.evaluation.rows import Clean, clean_rows
from brinell.evaluation.run_stage import Finished, StageContext, run_stage
from brinell.results import CLEAN
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes


@dataclass(frozen=True)
class FinishedRows:
    """Rows of finished samples, and the adversarials of those that count as broken with their ids."""

    table: pa.Table
    ids: npt.NDArray[np.int64] | None = None
    x: npt.NDArray[np.float32] | None = None


def run_plan(
    context: StageContext,
    plan: Plan,
    c: Clean,
    known: StoredOutcomes = NOTHING_STORED,
    *,
    individual: bool = False,
    everyone: bool = False,
    dropped: Collection[int] = (),
) -> Iterator[FinishedRows]:
    """Everything the plan does to the samples of a chunk beyond what is known of them, part by part.

    `individual`: every attack sees every correct sample. `everyone`: stages of an audit see all survivors. `dropped`
    are ids that somebody else takes care of; it is looked at when a stage begins and may have grown by then.
    """
    ids = c.chunk.ids.tolist()
    known.check(ids, c.hashes)
    fresh = np.flatnonzero(~np.asarray(known.seen(CLEAN, ids), dtype=bool))
    if len(fresh):
        yield FinishedRows(clean_rows(c, fresh, context.seed, FLOAT32, 0.0))
    standing = c.correct.clone()
    for stage in plan.stages_for(context.threat):
        attackable = c.correct if individual else standing
        if stage.is_audit and not everyone:
            attackable = attackable & in_audit(context.seed, c.chunk.ids, stage.sampled_share).to(standing.device)
        if dropped:
            attackable = attackable & ~torch.tensor([i in dropped for i in ids], device=standing.device)
        for part in _stage(context, stage, c, attackable, known):
            yield _part(part)
            standing[part.at[part.counted]] = False
        standing &= ~torch.tensor(known.fell(stage.name, ids), device=standing.device)


def _stage(
    context: StageContext, stage: Stage, c: Clean, attackable: Tensor, known: StoredOutcomes
) -> Iterator[Finished]:
    seen = torch.tensor(known.seen(stage.name, c.chunk.ids.tolist()), device=attackable.device)
    yield from run_stage(context, stage, c, (attackable & ~seen).nonzero()[:, 0])


def _part(done: Finished) -> FinishedRows:
    ids = np.asarray(done.table["sample_id"])[done.counted.cpu().numpy()]
    return FinishedRows(done.table, ids, done.x.numpy())
