"""One stage of a plan on one chunk of samples: engine, then verification, then rows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.attack import Batch, Response
from brinell.core.criterion import Criterion, Misclassified
from brinell.core.plan import Stage
from brinell.core.threat import TOLERANCE, Ball, Threat
from brinell.engine.accelerate import scheduler_for
from brinell.engine.best_so_far import Best
from brinell.engine.cuda.autotune import MOST
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Listener, Progress, StageStarted, silent
from brinell.engine.loop import Engine
from brinell.engine.oracle import ATTEMPTS_BLOCK, EARLY_BLOCK, RESTARTS_BLOCK, Oracle
from brinell.engine.precision import FLOAT32
from brinell.engine.slots import Samples, Slots
from brinell.evaluation.ranking import last_logits
from brinell.evaluation.refine_distance import refine_distance
from brinell.evaluation.rows import Clean, attack_rows
from brinell.evaluation.verify_points import Verified, verify_claims, verify_points
from brinell.ops import rng
from brinell.ops.losses import likeliest_wrong
from brinell.ops.rowwise import concat, put, take

MISCLASSIFY = Misclassified()
# Finished samples are handed on when there are this many, or when this much time has passed.
BATCH, SECONDS = 1024, 5.0


@dataclass(frozen=True)
class StageContext:
    """What stays the same through an evaluation."""

    oracle: Oracle
    threat: Threat
    seed: int
    slots: int
    precision: str = "float32"
    early_exit: bool = True
    criterion: Criterion = MISCLASSIFY
    listener: Listener = silent
    draws: int = 1
    graph_cache: GraphCache | None = None
    capturable: bool = False
    shape: tuple[int, ...] | None = None
    """Of the samples, where the number of slots is measured and not given."""
    observe: "Callable[[Slots, Response], None] | None" = None


@dataclass(frozen=True)
class Finished:
    """Rows of finished samples, which of them count as broken, and the adversarials of the broken ones."""

    table: pa.Table
    at: Tensor
    counted: Tensor
    x: Tensor


def rank_targets(logits: Tensor, y: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """The class of each rank per sample, the true class always first; −1 where there is no target."""
    if not ranks:
        return torch.full((len(y), 1), -1, device=y.device)
    return likeliest_wrong(logits, y, max(ranks) - 1)[:, [r - 2 for r in ranks]]


def _samples(context: StageContext, stage: Stage, c: Clean, at: Tensor, start: Tensor | None) -> Samples:
    device = c.logits.device
    rows = at.cpu()
    x, y = c.chunk.x[rows].to(device), c.chunk.y[rows].to(device)
    id = c.chunk.ids[rows].to(device)
    own = rng.keys(context.seed, id)
    targets = rank_targets(_ranking_logits(context, stage, c, at, x, y, own, id), y, stage.ranks)
    key = rng.fold(own, rng.digest(stage.noise or stage.attack.name) + stage.copy)
    eps = context.threat.ball(rows + c.chunk.offset, device).eps
    begin = None if start is None else start[rows].to(device)
    return Samples.of(x, y, key, eps, targets.repeat_interleave(stage.restarts, 1), begin, id)


def _ranking_logits(
    context: StageContext, stage: Stage, c: Clean, at: Tensor, x: Tensor, y: Tensor, own: Tensor, id: Tensor
) -> Tensor:
    """What ranks the targets: the logits of the clean input, or where the reference attack ends."""
    if stage.ranked_by is None:
        return c.logits[at]
    # Without the stage's own name: every stage and plan with this reference attack ranks alike.
    key = rng.fold(own, rng.digest(f"ranking {stage.ranked_by.name}"))
    ball = stage.ranking.threat(context.threat).ball(at.cpu() + c.chunk.offset, x.device)
    p = Batch(x, y, key, torch.full_like(y, -1), id=id)
    z = last_logits(context.oracle, stage.ranked_by, p, ball, context.slots, stage.eot)
    # Without a finite answer there is no order; then the clean one must do.
    return torch.where(z.isfinite().all(1, keepdim=True), z, c.logits[at])


def stage_oracle(context: StageContext, stage: Stage) -> Oracle:
    """The model as a stage asks it: about fewer rows at a time where few stay long, about more where legs fill them."""
    if stage.attack.abandons_early:
        return context.oracle.sized(RESTARTS_BLOCK if stage.attack.parallel_restarts else EARLY_BLOCK)
    return context.oracle.sized(ATTEMPTS_BLOCK) if len(stage.attempts()) > 1 else context.oracle


def _room(context: StageContext, oracle: Oracle) -> int:
    """Slots: those asked for, else no more lanes, which take their time to record, of small blocks than of large.

    But never less than a block, whose empty slots cost as much as full ones.
    """
    measured = context.graph_cache is not None and context.shape is not None
    return max(min(context.slots, MOST * oracle.block), oracle.block) if measured else context.slots


def _settles(context: StageContext) -> bool:
    """Whether the nearest points found in lower precision are moved to where float32 changes its mind."""
    distances = context.threat.unlimited and not context.threat.norm.counts
    return distances and context.draws == 1 and context.oracle.slack > 0


def _engine(context: StageContext, stage: Stage, device: torch.device) -> Engine:
    ball = context.threat.ball(torch.zeros(1, dtype=torch.long), device)
    oracle = stage_oracle(context, stage)
    return Engine(
        oracle,
        stage.attack,
        context.criterion,
        ball,
        stage.attempts(),
        _room(context, oracle),
        context.early_exit and context.draws == 1,
        stage.eot,
        _settles(context),
        observe=context.observe,
        # The observer runs on the host: its iterations cannot be captured.
        scheduler=scheduler_for(oracle, context.graph_cache if context.observe is None else None),
    )


def run_unverified(
    context: StageContext, stage: Stage, c: Clean, at: Tensor, tick: Callable[[int], bool]
) -> Iterator[tuple[Tensor, Best]]:
    """The engine's own records of these samples as they finish, neither verified nor stored; it ticks at every look."""
    samples = _samples(context, stage, c, at, None)
    yield from replace(_engine(context, stage, c.logits.device), tick=tick).run(samples)


def run_stage(
    context: StageContext, stage: Stage, c: Clean, at: Tensor, start: Tensor | None = None
) -> Iterator[Finished]:
    """Attack the samples at positions `at` of the chunk; yields batches of finished samples."""
    if not len(at):
        return
    before, backwards = stage.ranking_passes
    queries = stage.attack.queries * len(stage.attempts()) * stage.eot
    context.listener(StageStarted(stage.name, len(at), before + queries))
    begun = time.perf_counter()
    samples = _samples(context, stage, c, at, start)
    engine = _engine(context, stage, c.logits.device)
    last, passes, finished, broken = time.perf_counter(), 0, 0, 0
    ranking, loaded = (last - begun) / len(at), _loading(context)
    held: list[tuple[Tensor, Best]] = []
    for which, own in engine.run(samples):
        record = _with_ranking(own, before, backwards)
        held.append((which, record))
        finished += len(which)
        passes += int(record.forwards.sum())
        broken += int(record.broken.sum())
        context.listener(Progress(stage.name, finished, broken, passes))
        now = time.perf_counter()
        if finished == len(at) or sum(len(p[0]) for p in held) >= BATCH or now - last > SECONDS:
            # The time since the last batch is shared out by passes, so that the rows' seconds add up to the clock's but
            # for start-up; that of the ranking, which was done for all samples at once, by samples.
            starting, loaded = _loading(context) - loaded, _loading(context)
            spent = max(now - last - starting, 0.0) + ranking * sum(len(p[0]) for p in held)
            rate = spent / max(sum(int(r.forwards.sum()) for _, r in held), 1)
            yield _finish(context, stage, c, samples, at, held, rate)
            held, last = [], now


def _loading(context: StageContext) -> float:
    """Seconds spent on recording and compiling so far."""
    return 0.0 if context.graph_cache is None else context.graph_cache.seconds


def _with_ranking(r: Best, forwards: int, backwards: int) -> Best:
    """The record with the passes that ranked its targets, which came before the attack's own."""
    if not forwards:
        return r
    first = torch.where(r.first >= 0, r.first + forwards, r.first)
    return replace(r, forwards=r.forwards + forwards, backwards=r.backwards + backwards, first=first)


def _in_float32(context: StageContext, stage: Stage, samples: Samples, before: Best, left: Tensor) -> Best:
    """Attack again in float32, from the same start; the passes of both count.

    It repeats the leg that seemed to succeed. Samples that `left` with that leg have had none of those after it, and
    get them now. Of a search for the smallest distance all legs are repeated: what they had found gave way to this.
    """
    engine = _engine(replace(context, oracle=context.oracle.exact()), stage, samples.device)
    first = torch.zeros_like(before.attempt) if _settles(context) else before.attempt
    end = torch.where(left | _settles(context), len(stage.attempts()), before.attempt + 1)
    again = replace(samples, attempts=torch.stack([first, end], 1))
    parts = list(engine.run(again))
    r = take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort())
    return replace(
        r,
        forwards=r.forwards + before.forwards,
        backwards=r.backwards + before.backwards,
        first=torch.where(r.first >= 0, r.first + before.forwards, r.first),
    )


def claimed(r: Best, ball: Ball) -> Tensor:
    """Rows for which some point was seen to succeed within the radius, by however little."""
    return r.broken | (r.found & (r.distance <= ball.eps * (1 + TOLERANCE)))


def _verified(context: StageContext, samples: Samples, pos: Tensor, r: Best, ball: Ball) -> tuple[Tensor, Verified]:
    """The classes the kept points aim at, and what the model says about the points."""
    target = samples.targets[pos, r.attempt]
    p = take(samples.batch, pos)
    points, id = (p.x, r.x, p.y, target, ball), p.id
    if context.draws > 1:
        return target, verify_points(context.oracle, context.criterion, *points, context.draws, id)
    return target, verify_claims(context.oracle, context.criterion, *points, r.broken, id)


def _finish(
    context: StageContext,
    stage: Stage,
    c: Clean,
    samples: Samples,
    at: Tensor,
    held: list[tuple[Tensor, Best]],
    rate: float,
) -> Finished:
    pos, r = torch.cat([p for p, _ in held]), concat([r for _, r in held])
    order = pos.argsort()
    pos = pos[order]
    r = take(r, order)
    ball = replace(context.threat.ball(torch.zeros(1, dtype=torch.long), pos.device), eps=samples.eps[pos])
    left, made = r.broken & context.early_exit, int(r.forwards.sum())
    if context.oracle.slack > 0:
        # Seen to fall, but by less than lower precision can tell: a claim like any other.
        r = replace(r, broken=claimed(r, ball))
        if _settles(context):
            r = refine_distance(
                context.oracle, context.criterion, r, take(samples.batch, pos), samples.targets[pos, r.attempt], ball
            )
    target, v = _verified(context, samples, pos, r, ball)
    precision = np.full(len(pos), context.precision)
    doubted = r.broken & ~v.ok
    if context.precision != FLOAT32 and context.draws == 1 and bool(doubted.any()):
        # What lower precision took for a success is attacked again in float32.
        index = doubted.nonzero()[:, 0]
        second = _in_float32(context, stage, take(samples, pos[index]), take(r, index), left[index])
        aims, answers = _verified(context, samples, pos[index], second, ball.subset(index))
        r, v, target = put(r, index, second), put(v, index, answers), target.index_copy(0, index, aims)
        precision[index.cpu().numpy()] = FLOAT32
    if context.draws > 1:
        # A randomised model is broken where most fresh passes are fooled, whatever the attack itself saw.
        r = replace(r, broken=v.ok, found=v.ok)
    where = at[pos]
    # Passes made since are not in the time that is shared out.
    rate *= made / max(int(r.forwards.sum()), 1)
    table = attack_rows(c, where, r, v, stage, target, context.seed, precision, rate)
    counted = r.broken & v.ok
    return Finished(table, where, counted, r.x[counted].detach().cpu())
