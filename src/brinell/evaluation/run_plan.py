"""Run a plan on one chunk of samples; the caller stores the rows."""

from collections.abc import Collection, Iterator

import numpy as np
import torch
from torch import Tensor

from brinell.core.plan import Plan
from brinell.engine.precision import FLOAT32
from brinell.evaluation.audit import attacked
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean, FinishedRows, clean_rows, require_same_answers
from brinell.evaluation.run_stage import run_stage
from brinell.results import CLEAN
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes
from brinell.results.format.schema import margin_left


def run_plan(
    context: StageContext, plan: Plan, c: Clean, known: StoredOutcomes = NOTHING_STORED,
    *, individual: bool = False, reach: float = 0.0, dropped: Collection[int] = (),
) -> Iterator[FinishedRows]:  # fmt: skip
    """Run, on the samples of a chunk, the stages whose outcomes are not stored yet; yield rows as samples finish.

    `known` are the stored outcomes. With `individual`, every attack runs on every correctly
    classified sample. Audits also attack the survivors with less than the share `reach` of their clean
    margin left (inf: all survivors). `dropped` are ids of samples that another worker
    attacks; ids may be added while this function runs, and every stage reads the ids when it begins.
    """
    ids = c.chunk.ids.tolist()
    known.check(ids, c.hashes)
    require_same_answers(c, known)
    fresh = np.flatnonzero(~np.asarray(known.seen(CLEAN, ids), dtype=bool))
    if len(fresh):
        yield FinishedRows(clean_rows(c, fresh, context.seed, FLOAT32, 0.0))
    standing = c.correct.clone()
    stages = plan.stages_for(context.threat)
    place = {i: k for k, i in enumerate(ids)}
    left = known.least_left([s.name for s in stages if not s.is_audit], ids)
    for stage in stages:
        attackable = c.correct if individual else standing
        attackable = attackable & attacked(stage, context.seed, c.chunk.ids, left, reach).to(standing.device)
        if dropped:
            attackable = attackable & ~_mask([i in dropped for i in ids], standing)
        seen = _mask(known.seen(stage.name, ids), standing)
        for broken, rows in run_stage(context, stage, c, (attackable & ~seen).nonzero()[:, 0]):
            yield rows
            standing[broken] = False
            if not stage.is_audit:
                for i, share in zip(rows.table["sample_id"].to_pylist(), margin_left(rows.table).tolist(), strict=True):
                    left[place[i]] = min(left[place[i]], share)
        standing &= ~_mask(known.fell(stage.name, ids), standing)


def _mask(values: list[bool], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.bool, device=like.device)
