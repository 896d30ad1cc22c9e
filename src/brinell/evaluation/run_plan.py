"""Run a plan on one chunk of samples; the caller stores the rows."""

from collections.abc import Collection, Iterator

import numpy as np
import torch

from brinell.core.plan import Plan
from brinell.engine.precision import FLOAT32
from brinell.evaluation.audit import in_audit
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean, FinishedRows, clean_rows
from brinell.evaluation.run_stage import run_stage
from brinell.results import CLEAN
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes


def run_plan(
    context: StageContext, plan: Plan, c: Clean, known: StoredOutcomes = NOTHING_STORED,
    *, individual: bool = False, everyone: bool = False, dropped: Collection[int] = (),
) -> Iterator[FinishedRows]:  # fmt: skip
    """Run, on the samples of a chunk, the stages whose outcomes are not stored yet; yield rows as samples finish.

    `known` are the stored outcomes. With `individual`, every attack runs on every correctly
    classified sample. With `everyone`, audits attack all survivors. `dropped` are ids of samples that another worker
    attacks; ids may be added while this function runs, and every stage reads the ids when it begins.
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
        seen = torch.tensor(known.seen(stage.name, ids), device=standing.device)
        for broken, rows in run_stage(context, stage, c, (attackable & ~seen).nonzero()[:, 0]):
            yield rows
            standing[broken] = False
        standing &= ~torch.tensor(known.fell(stage.name, ids), device=standing.device)
