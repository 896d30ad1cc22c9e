"""Choose the precision of the attacks' passes by a trial on a few samples."""

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
from brinell.engine.precision import FLOAT32, candidates
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import claimed, run_unverified
from brinell.evaluation.verify_points import verify_points

# Lower precision must take at most this share of float32's time, and the trial must have this many adversarials.
FASTER, EVIDENCE = 0.9, 5
# The limits of a trial in seconds and queries. Adversarials of this first share of it must be found again.
SECONDS, ANSWERS, EARLY = 0.7, 60, 0.75


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
        descriptions = [f"{t.precision} {1000 * t.seconds:.1f} ms per iteration" for t in self.trials[:1]]
        descriptions += [
            f"{t.precision} {1000 * t.seconds:.1f} ms, {t.found} of {t.wanted} adversarials" for t in self.trials[1:]
        ]
        return f"Precision {self.precision}, chosen by a trial: {'; '.join(descriptions)}."

    def to_json(self) -> dict[str, Any]:
        """Return the choice and its trials as stored in the manifest."""
        trials = [{"precision": t.precision, "seconds": t.seconds, "found": t.found} for t in self.trials]
        return {"precision": self.precision, "wanted": self.trials[0].wanted if self.trials else 0, "trials": trials}


def fastest_safe(trials: Sequence[PrecisionTrial]) -> PrecisionChoice:
    """Choose the fastest precision that loses no adversarial and is clearly faster than float32, else float32.

    >>> slow, quick = PrecisionTrial("float32", 1.0, 8, 8), PrecisionTrial("bfloat16", 0.5, 8, 8)
    >>> fastest_safe([slow, quick]).precision, fastest_safe([slow, PrecisionTrial("bfloat16", 0.5, 7, 8)]).precision
    ('bfloat16', 'float32')
    """
    base = trials[0]
    safe = [t for t in trials[1:] if t.wanted >= EVIDENCE and not t.lost and t.seconds <= FASTER * base.seconds]
    return PrecisionChoice(min(safe, key=lambda t: t.seconds).precision if safe else base.precision, tuple(trials))


def choose_precision(
    context: StageContext, stages: Stages, c: Clean, clock: Clock = time.perf_counter
) -> PrecisionChoice:
    """Choose a precision: try every precision of the device with the plan's first gradient attack on one block.

    Method: the attack runs in float32 for a limited time, then in each other precision with twice as many queries. The
    samples that float32 broke in the first three quarters of its queries must also break in the other precision,
    verified in float32. Cost: a few seconds at most.
    """
    device = c.logits.device
    at = np.flatnonzero(c.correct.cpu().numpy())
    if not len(at) or len(candidates(device)) < 2:
        return PrecisionChoice(FLOAT32, ())
    at = positions(context.seed, c, at, context.oracle.block)
    stage = next((s for s in stages if s.attack.requires is not Requires.LOGITS), stages[0])
    with preserve_rng(device):
        base, seconds, made = _trial(context, stage, c, at, FLOAT32, None, clock)
        over = made * (EARLY if made < max_queries(stage) else 1.0)
        wanted = {i for i, answers in base.items() if answers <= over}
        trials = [PrecisionTrial(FLOAT32, seconds, len(wanted), len(wanted))]
        for name in candidates(device)[1:]:
            # Lower precision takes longer: a sample must be broken by more than the rounding error.
            broken, seconds, _ = _trial(context, stage, c, at, name, 2 * made, clock)
            trials.append(PrecisionTrial(name, seconds, len(wanted & broken.keys()), len(wanted)))
    return fastest_safe(trials)


def _trial(
    context: StageContext, stage: Stage, c: Clean, at: Ints, precision: str, most: int | None, clock: Clock
) -> tuple[dict[int, int], float, int]:
    """Return {position: queries} of broken samples (verified in float32), seconds per iteration, iterations made."""
    plain = Oracle(context.oracle.classifier, context.oracle.block, precision=precision)
    oracle = accelerated(plain, plain.classifier.device)
    context = replace(context, oracle=oracle, precision=precision, draws=1, early_exit=True, graph_cache=None)
    # A precision that takes clearly longer than float32 is not chosen anyway.
    deadline = clock() + (SECONDS if most is None else 2 * SECONDS)
    watch = Stopwatch(clock, deadline, most_iterations=ANSWERS if most is None else most)
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
