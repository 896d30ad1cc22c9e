"""Try on a few samples whether lower precision finds what float32 finds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from brinell.core.attack import Requires
from brinell.core.plan import Stage, Stages
from brinell.cost.budget import max_queries
from brinell.cost.pilot import Clock, Ints, Stopwatch, positions, preserve_rng
from brinell.engine.accelerate import accelerated
from brinell.engine.oracle import Oracle
from brinell.engine.precision import FLOAT32, PRECISIONS
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import claimed, run_unverified
from brinell.evaluation.verify_points import verify_points

# A trial with fewer adversarials shows nothing: TF32 is used, as in other tools.
EVIDENCE, USUAL = 5, "tf32"
# The limits of a trial: rows of a call, queries, and the share of the time for float32; the two lower precisions have
# twice as many queries, and twice the time each. Adversarials of the first three quarters must be found again.
ROWS, ANSWERS, SHARE, EARLY = 64, 60, 0.2, 0.75


@dataclass(frozen=True)
class PrecisionTrial:
    """The trial of one precision: seconds per iteration, and how many (`found`) of the `wanted` samples it broke.

    `wanted` is the number of samples that float32 broke.

    >>> PrecisionTrial("bfloat16", seconds=0.1, found=9, wanted=10).lost
    1
    """

    precision: str
    seconds: float
    found: int
    wanted: int

    @property
    def lost(self) -> int:
        """The number of samples that broke in float32 and not in this precision."""
        return self.wanted - self.found


@dataclass(frozen=True)
class PrecisionChoice:
    """The chosen precision, and the trials of all precisions (float32 first)."""

    precision: str
    trials: tuple[PrecisionTrial, ...]

    def __str__(self) -> str:
        if not self.trials or self.trials[0].wanted < EVIDENCE:
            return "A trial broke too few samples to tell more."
        found = ", ".join(f"{t.precision} {t.found} of {t.wanted}" for t in self.trials[1:])
        return f"Of the adversarials of float32 in a trial, {found} were found again."

    def to_json(self) -> dict[str, Any]:
        """Return the choice and its trials as stored in the manifest."""
        trials = [{"precision": t.precision, "seconds": t.seconds, "found": t.found} for t in self.trials]
        return {"precision": self.precision, "wanted": self.trials[0].wanted if self.trials else 0, "trials": trials}


def lowest_safe(trials: Sequence[PrecisionTrial]) -> PrecisionChoice:
    """Choose the lowest precision that loses no adversarial; without evidence TF32. Trials go from float32 downwards.

    >>> base, other = PrecisionTrial("float32", 1.0, 8, 8), PrecisionTrial("tf32", 0.5, 8, 8)
    >>> lowest_safe([base, other, PrecisionTrial("bfloat16", 0.3, 7, 8)]).precision
    'tf32'
    """
    if not trials or trials[0].wanted < EVIDENCE:
        return PrecisionChoice(USUAL, tuple(trials))
    safe = [t for t in trials if not t.lost]
    return PrecisionChoice(safe[-1].precision, tuple(trials))


def try_precisions(
    context: StageContext, stages: Stages, c: Clean, seconds: float, precisions: Sequence[str] = PRECISIONS,
    clock: Clock = time.perf_counter,
) -> PrecisionChoice:  # fmt: skip
    """Choose a precision by a trial of at most about `seconds`: the plan's first gradient attack on one small block.

    Method: the attack runs in float32 for a part of the time, then in each lower precision with twice as many queries.
    The samples that float32 broke in the first three quarters of its queries must also break in the lower precision,
    verified in float32.
    """
    at = np.flatnonzero(c.correct.cpu().numpy())
    if not len(at):
        return PrecisionChoice(USUAL, ())
    at = positions(context.seed, c, at, min(ROWS, context.oracle.block))
    stage = next((s for s in stages if s.attack.requires is not Requires.LOGITS), stages[0])
    with preserve_rng(c.logits.device):
        base, spent, made = _trial(context, stage, c, at, FLOAT32, ANSWERS, SHARE * seconds, clock)
        over = made * (EARLY if made < max_queries(stage) else 1.0)
        wanted = {i for i, answers in base.items() if answers <= over}
        trials = [PrecisionTrial(FLOAT32, spent, len(wanted), len(wanted))]
        if len(wanted) < EVIDENCE:
            return lowest_safe(trials)
        for name in precisions[1:]:
            # Lower precision takes longer: a sample must be broken by more than the rounding error.
            broken, spent, _ = _trial(context, stage, c, at, name, 2 * made, 2 * SHARE * seconds, clock)
            trials.append(PrecisionTrial(name, spent, len(wanted & broken.keys()), len(wanted)))
    return lowest_safe(trials)


def _trial(
    context: StageContext, stage: Stage, c: Clean, at: Ints, precision: str, most: int, seconds: float, clock: Clock
) -> tuple[dict[int, int], float, int]:
    """Return {position: queries} of broken samples (verified in float32), seconds per iteration, iterations made."""
    plain = Oracle(context.oracle.classifier, min(ROWS, context.oracle.block), precision=precision)
    oracle = accelerated(plain, plain.classifier.device)
    context = replace(context, oracle=oracle, precision=precision, draws=1, early_exit=True, graph_cache=None)
    watch = Stopwatch(clock, clock() + seconds, most_iterations=most)
    where = torch.as_tensor(at, device=c.logits.device)
    broken: dict[int, int] = {}
    for which, r in run_unverified(context, stage, c, where, watch):
        rows = where[which].cpu()
        x0, y = c.chunk.x[rows].to(r.x.device), c.chunk.y[rows].to(r.x.device)
        ball = context.threat.ball(rows + c.chunk.offset, r.x.device)
        # Any wrong class counts, whatever the target.
        ok = claimed(r, ball) & verify_points(oracle, context.criterion, x0, r.x, y, torch.full_like(y, -1), ball).ok
        broken |= dict(zip(rows[ok.cpu()].tolist(), (r.forwards[ok] // stage.eot).tolist(), strict=True))
    return broken, watch.each, watch.iterations
