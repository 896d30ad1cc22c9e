"""Run one stage of a plan on one chunk of samples: engine, then verification, then rows."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Batch, Requires
from brinell.core.plan import Stage
from brinell.core.ranking import MaltRanking, rank_by_distance, rank_targets
from brinell.core.start_pool import ActivationSearch
from brinell.core.surrogate import Surrogate
from brinell.core.threat import TOLERANCE, Ball
from brinell.engine.accelerate import scheduler_for
from brinell.engine.best_so_far import Best
from brinell.engine.events import StageStarted
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.precision import FLOAT32
from brinell.engine.slots import Samples
from brinell.engine.surrogate_oracle import SurrogateOracle
from brinell.evaluation.context import StageContext
from brinell.evaluation.progress import StageProgress
from brinell.evaluation.rows import Clean, FinishedRows, attack_rows
from brinell.evaluation.verify_points import Verified, refine_distance, verify_claims, verify_points
from brinell.models.surrogate import surrogate_of
from brinell.ops import rng
from brinell.ops.losses import likeliest_wrong
from brinell.ops.rowwise import concat, put, take

# Finished samples are yielded when there are this many, or when this much time has passed.
BATCH, SECONDS = 1024, 5.0
# The most blocks of slots with captured steps, where the user gave no number of slots.
MOST = 8


def _samples(context: StageContext, stage: Stage, c: Clean, at: Tensor, start: Tensor | None) -> Samples:
    """Return the samples at positions `at` with their noise keys, radii, targets and start points."""
    device, rows = c.logits.device, at.cpu()
    x, y, id = c.chunk.x[rows].to(device), c.chunk.y[rows].to(device), c.chunk.ids[rows].to(device)
    sample_key = rng.keys(context.seed, id)
    batch = Batch(x, y, sample_key, torch.full_like(y, -1), id=id)
    logits = ranking_logits(context, stage, batch, c.logits[at], rows + c.chunk.offset)
    targets = rank_targets(logits, y, stage.ranks).repeat_interleave(stage.restarts, 1)
    key = rng.fold(sample_key, rng.digest(stage.noise or stage.attack.name) + stage.copy)
    eps = context.threat.ball(rows + c.chunk.offset, device).eps
    return Samples.of(x, y, key, eps, targets, None if start is None else start[rows].to(device), id)


def ranking_logits(context: StageContext, stage: Stage, p: Batch, clean: Tensor, positions: Tensor) -> Tensor:
    """Return the logits, or other scores, whose order ranks the targets of these samples.

    `p` holds the samples with their sample keys, `clean` are their clean logits, `positions` are their places in the
    problem.
    """
    ranking, ball = stage.ranking, stage.ranking.threat(context.threat).ball(positions, p.x.device)
    if isinstance(ranking, MaltRanking):
        return malt_scores(context.oracle, ranking, p, ball, clean, context.slots, stage.eot)
    attack = ranking.attack
    if attack is None and stage.via is not None and stage.ranks:
        # Logits of a model that hides its gradients may not rank the other classes at all.
        return _surrogate_oracle(context.oracle, stage.via).output(p.x, p.id).logits
    if attack is None:
        return clean
    # The key does not depend on the stage: every stage and plan with this reference attack ranks alike.
    p = replace(p, key=rng.fold(p.key, rng.digest(f"ranking {attack.name}")))
    logits = last_logits(context.oracle, attack, p, ball, context.slots, stage.eot)
    # Logits that are not finite have no order: the clean logits rank instead.
    return torch.where(logits.isfinite().all(1, keepdim=True), logits, clean)


def last_logits(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, slots: int, draws: int = 1) -> Tensor:
    """Return the logits at the attack's last iterate, (b, classes); each row depends on its own sample alone.

    Cost: `attack.queries` forwards and `attack.queries − 1` backwards, times `draws`: the last point needs no gradient.
    """
    # Padded, as in the engine: reductions over a single row round differently.
    index = torch.arange(oracle.padded(len(p.x)), device=p.x.device).clamp(max=len(p.x) - 1)
    pieces = index.split(-(-slots // oracle.block) * oracle.block)
    parts = [_piece(oracle, attack, take(p, i), ball.subset(i), draws) for i in pieces]
    return torch.cat(parts)[: len(p.x)]


def _piece(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, draws: int) -> Tensor:
    s = attack.init(p, ball)
    for _ in range(attack.queries - 1):
        s = attack.step(s, oracle.query(s.x, p.y, p.target, attack.loss, attack.requires, draws, p.id), p, ball)
    return oracle.query(s.x, p.y, p.target, attack.loss, Requires.LOGITS, draws, p.id).logits


def malt_scores(
    oracle: Oracle, ranking: MaltRanking, p: Batch, ball: Ball, clean: Tensor, slots: int, draws: int = 1
) -> Tensor:
    """Return scores (b, classes) in the order of MALT; each row depends on its own sample alone.

    Cost: one forward and one backward per candidate class, times `draws`.
    """
    candidates = likeliest_wrong(clean, p.y, ranking.candidates)
    n, k = candidates.shape
    # One row per sample and candidate, padded, as in the engine: reductions over a single row round differently.
    index = torch.arange(oracle.padded(n * k), device=p.x.device).clamp(max=n * k - 1)
    margins, duals = [], []
    for i in index.split(-(-slots // oracle.block) * oracle.block):
        row, target = i // k, candidates.flatten()[i]
        id = None if p.id is None else p.id[row]
        a = oracle.query(p.x[row], p.y[row], target, "minimum-margin", Requires.GRAD, draws, id)
        margins.append(-a.loss)
        duals.append(ball.norm.dual_size(ball.masked(a.gradient)))
    each = [torch.cat(parts)[: n * k].view(n, k) for parts in (margins, duals)]
    scores = rank_by_distance(clean, candidates, *each)
    # Margins that are not finite have no order: the clean logits rank instead.
    return torch.where(each[0].isfinite().all(1, keepdim=True), scores, clean)


def stage_oracle(context: StageContext, stage: Stage) -> Oracle:
    """Return the oracle of a stage, with the block size for its early ends and its number of attempts.

    In L1 and L0 attacks with gradients query in float32: a step moves few coordinates, and rounding changes which.
    """
    oracle, sparse = context.oracle, context.threat.norm.sparse
    if sparse and stage.attack.requires is not Requires.LOGITS:
        oracle = oracle.in_precision(FLOAT32)
    elif stage.attack.needs_float32:
        oracle = oracle.in_precision("tf32" if oracle.classifier.device.type == "cuda" else FLOAT32)
    if stage.via is not None:
        return _surrogate_oracle(oracle, stage.via)
    if stage.attack.abandons_early:
        return oracle.sized("branches" if stage.attack.parallel_restarts else "few")
    return oracle.sized("legs") if len(stage.attempts()) > 1 else oracle


def _surrogate_oracle(oracle: Oracle, via: Surrogate) -> SurrogateOracle:
    return SurrogateOracle.through(surrogate_of(oracle.classifier, via), oracle)


def _slots(context: StageContext, oracle: Oracle) -> int:
    """Return the number of slots; a measured number is kept between 1 and `MOST` blocks, since capture takes time."""
    measured = context.graph_cache is not None and context.shape is not None
    return max(min(context.slots, MOST * oracle.block), oracle.block) if measured else context.slots


def _refines(context: StageContext) -> bool:
    """Return whether to move the nearest points found in lower precision to the decision boundary in float32."""
    distances = context.threat.unlimited and not context.threat.norm.counts
    return distances and context.draws == 1 and context.oracle.slack > 0


def _engine(context: StageContext, stage: Stage, device: torch.device) -> Engine:
    ball = context.threat.ball(torch.zeros(1, dtype=torch.long, device="cpu"), device)
    oracle = stage_oracle(context, stage)
    return Engine(
        oracle,
        stage.attack,
        context.criterion,
        ball,
        stage.attempts(),
        _slots(context, oracle),
        context.early_exit and context.draws == 1,
        stage.eot,
        _refines(context),
        observe=context.observe,
        # The observer runs on the host, and a surrogate has hooks: their iterations cannot be captured.
        keep_best=context.keep_best,
        scheduler=scheduler_for(oracle, context.graph_cache if context.observe is None and stage.via is None else None),
    )


def run_unverified(
    context: StageContext, stage: Stage, c: Clean, at: Tensor, tick: Callable[[int], bool]
) -> Iterator[tuple[Tensor, Best]]:
    """Yield the engine's results as samples finish, neither verified nor stored; call `tick` at every host sync."""
    samples = _samples(context, stage, c, at, None)
    for which, best in replace(_engine(context, stage, c.logits.device), tick=tick).run(samples):
        yield which, _with_judging(best, stage)


def run_stage(
    context: StageContext, stage: Stage, c: Clean, at: Tensor, start: Tensor | None = None
) -> Iterator[tuple[Tensor, FinishedRows]]:
    """Attack the samples at positions `at` of the chunk.

    Yield batches of finished samples: the positions of the broken samples, and the rows of all samples.
    """
    if not len(at):
        return
    before, backwards = stage.ranking_passes
    context.listener(StageStarted(stage.name, len(at), before + stage.queries))
    begun = time.perf_counter()
    if stage.search is not None:
        start = _searched(context, stage.search, c, at)
    samples = _samples(context, stage, c, at, start)
    engine = _engine(context, stage, c.logits.device)
    seen = StageProgress(stage.name, len(at), before + stage.queries, context.listener)
    each = 1 if stage.via is None else 2
    engine = replace(engine, watch=lambda passes, begun: seen.watch(each * passes, begun))
    last = time.perf_counter()
    ranking, startup = (last - begun) / len(at), _startup_seconds(context)
    held: list[tuple[Tensor, Best]] = []
    try:
        for which, best in engine.run(samples):
            best = _with_ranking(_with_judging(best, stage), before, backwards)
            held.append((which, best))
            seen.finish(len(which), int(best.broken.sum()), int(best.forwards.sum()))
            now = time.perf_counter()
            if seen.finished == len(at) or sum(len(p[0]) for p in held) >= BATCH or now - last > SECONDS:
                # The time since the last batch is divided by passes, without start-up, so that the seconds of the rows
                # add up to the wall-clock time. The time of the ranking is divided by samples.
                starting, startup = _startup_seconds(context) - startup, _startup_seconds(context)
                spent = max(now - last - starting, 0.0) + ranking * sum(len(p[0]) for p in held)
                rate = spent / max(sum(int(r.forwards.sum()) for _, r in held), 1)
                batch, held, last = held, [], now
                yield _finish(context, stage, c, samples, at, batch, rate)
    except Exception:
        if held:
            # Samples that have finished are stored before the error, if the model still answers.
            with suppress(Exception):
                yield _finish(context, stage, c, samples, at, held, 0.0)
        raise


def _searched(context: StageContext, search: ActivationSearch, c: Clean, at: Tensor) -> Tensor:
    """Return the points that the search finds for the samples at positions `at`, and the clean points elsewhere."""
    # Imported where it is used: other stages need none of it.
    from brinell.certification.activation_search import searched_points

    device, which = c.logits.device, at.cpu()
    x, y = c.chunk.x[which].to(device), c.chunk.y[which].to(device)
    ball = context.threat.ball(which + c.chunk.offset, device)
    found = searched_points(search, context.oracle.classifier, x, y, ball)
    return c.chunk.x.index_copy(0, which, found.to(c.chunk.x))


def _startup_seconds(context: StageContext) -> float:
    return 0.0 if context.graph_cache is None else context.graph_cache.seconds


def _with_judging(r: Best, stage: Stage) -> Best:
    """Return the results; with a surrogate every query also takes a forward pass of the model, which is counted."""
    if stage.via is None:
        return r
    return replace(r, forwards=2 * r.forwards, first=torch.where(r.first >= 0, 2 * r.first, r.first))


def _with_ranking(r: Best, forwards: int, backwards: int) -> Best:
    """Return the results; their numbers of passes now include the passes that ranked the targets."""
    if not forwards:
        return r
    first = torch.where(r.first >= 0, r.first + forwards, r.first)
    return replace(r, forwards=r.forwards + forwards, backwards=r.backwards + backwards, first=first)


def _in_float32(context: StageContext, stage: Stage, samples: Samples, before: Best, exited: Tensor) -> Best:
    """Repeat the attack in float32 from the same start; add the passes of the first attack (`before`) to the result.

    The attempt that succeeded in lower precision is repeated. Samples whose attack stopped at this success (`exited`)
    continue with the later attempts. A search for the smallest distance repeats all attempts, since only the smallest
    distance was kept.
    """
    engine = _engine(replace(context, oracle=context.oracle.exact()), stage, samples.device)
    first = torch.zeros_like(before.attempt) if _refines(context) else before.attempt
    end = torch.where(exited | _refines(context), len(stage.attempts()), before.attempt + 1)
    again = replace(samples, attempts=torch.stack([first, end], 1))
    results = list(engine.run(again))
    r = take(concat([r for _, r in results]), torch.cat([p for p, _ in results]).argsort())
    return replace(
        r,
        forwards=r.forwards + before.forwards,
        backwards=r.backwards + before.backwards,
        first=torch.where(r.first >= 0, r.first + before.forwards, r.first),
    )


def claimed(r: Best, ball: Ball) -> Tensor:
    """Return a mask of the results with an adversarial within the radius, however small its margin."""
    return r.broken | (r.found & (r.distance <= ball.eps * (1 + TOLERANCE)))


def _verified(context: StageContext, samples: Samples, pos: Tensor, r: Best, ball: Ball) -> tuple[Tensor, Verified]:
    """Return the target class of the point found for each sample, and the verification of this point."""
    target = samples.targets[pos, r.attempt]
    p = take(samples.batch, pos)
    points, id = (p.x, r.x, p.y, target, ball), p.id
    if context.draws > 1:
        return target, verify_points(context.oracle, context.criterion, *points, context.draws, id)
    return target, verify_claims(context.oracle, context.criterion, *points, r.broken, id)


def _finish(
    context: StageContext, stage: Stage, c: Clean, samples: Samples, at: Tensor, held: list[tuple[Tensor, Best]],
    rate: float,
) -> tuple[Tensor, FinishedRows]:  # fmt: skip
    """Verify a batch of finished samples; return the positions of the broken samples, and the rows of all."""
    pos, r = torch.cat([p for p, _ in held]), concat([r for _, r in held])
    order = pos.argsort()
    pos = pos[order]
    r = take(r, order)
    ball = replace(
        context.threat.ball(torch.zeros(1, dtype=torch.long, device="cpu"), pos.device), eps=samples.eps[pos]
    )
    exited, made = r.broken & context.early_exit, int(r.forwards.sum())
    if context.oracle.slack > 0:
        # A success within the rounding of lower precision is verified like any other.
        r = replace(r, broken=claimed(r, ball))
        if _refines(context):
            r = refine_distance(
                context.oracle, context.criterion, r, take(samples.batch, pos), samples.targets[pos, r.attempt], ball
            )
    target, v = _verified(context, samples, pos, r, ball)
    precision = np.full(len(pos), context.precision)
    refuted = r.broken & ~v.ok
    if context.precision != FLOAT32 and context.draws == 1 and bool(refuted.any()):
        # Float32 attacks again where a point succeeded in lower precision only.
        index = refuted.nonzero()[:, 0]
        second = _in_float32(context, stage, take(samples, pos[index]), take(r, index), exited[index])
        aims, verified = _verified(context, samples, pos[index], second, ball.subset(index))
        r, v, target = put(r, index, second), put(v, index, verified), target.index_copy(0, index, aims)
        precision[index.cpu().numpy()] = FLOAT32
    if context.draws > 1:
        # On a randomised model a sample is broken where most fresh passes are fooled, whatever the attack saw.
        r = replace(r, broken=v.ok, found=v.ok)
    where = at[pos]
    # The time of the batch does not include the passes made since.
    rate *= made / max(int(r.forwards.sum()), 1)
    table = attack_rows(c, where, r, v, stage, target, context.seed, precision, rate)
    counted = r.broken & v.ok
    ids = np.asarray(table["sample_id"])[counted.cpu().numpy()]
    best = r.x.detach().cpu().numpy() if context.keep_best else None
    return where[counted], FinishedRows(table, ids, r.x[counted].detach().cpu().numpy(), best)
