"""Extrapolate the cost of an evaluation from a pilot on a few of its samples."""

import math
import time
from dataclasses import replace

import numpy as np

from brinell.core.plan import Stage
from brinell.cost.budget import Estimate, StageEstimate, backwards_per_query, duration, longest_seconds, rounded
from brinell.cost.outcomes import (
    PredictedOutcome,
    RemainingWork,
    attacked_by,
    predict_outcomes,
    stage_outcome,
    surviving,
    unfinished_samples,
)
from brinell.cost.pilot import Clock, Ints, Numbers, Pace, Pilot, preserve_rng, run_pilot, schedule
from brinell.evaluation.run_stage import BATCH, stage_oracle
from brinell.results import CLEAN, Audit, Cost, Proportion
from brinell.results.format.resume import NOTHING_STORED

# The pilot takes this share of the longest possible run, between these seconds.
SHARE, SHORTEST, LONGEST = 0.2, 1.0, 2.0
# In addition to the attack: passes that verify a sample, seconds to store a row, seconds to store a shard.
VERIFYING, STORING, SHARD = 3, 6e-5, 0.015
# The range of the time is wider by this factor, since the speed of a machine varies.
JITTER = 1.25


def predict(a: RemainingWork, seconds: float | None = None, clock: Clock = time.perf_counter) -> Estimate:
    """Run a pilot of at most `seconds` (default: a fifth of the longest run, but 1 to 2 s); return the estimate."""
    n = len(a.clean.chunk)
    if seconds is None:
        longest = longest_seconds(a.stages, n + math.ceil(a.rest), a.pace)
        seconds = min(LONGEST, max(SHORTEST, SHARE * longest))
    correct = a.clean.correct.cpu().numpy()
    at = np.flatnonzero(correct if a.rest else correct & unfinished_samples(a))
    with preserve_rng(a.clean.logits.device):
        pilot = run_pilot(a.context, a.stages, a.clean, at, a.individual, seconds, a.pace, clock) if len(at) else None
    return _estimate(a, pilot)


def _estimate(a: RemainingWork, pilot: Pilot | None) -> Estimate:
    here = predict_outcomes(a, pilot, a.known, 1.0)
    fresh = predict_outcomes(a, pilot, NOTHING_STORED, 1.0) if a.rest else here
    stages = [_clean_stage(a, pilot)]
    share = a.rest / len(a.clean.chunk)
    for k, stage in enumerate(a.stages):
        one = _stage_cost(a, pilot, k, stage, here[k])
        more = _stage_cost(a, pilot, k, stage, fresh[k]) if a.rest else one
        stages.append(_sum(one, more, share))
    may_escalate = a.escalate is not False and any(s.is_audit for s in a.stages)
    notes = (_escalation(a, stages, here, pilot),) if may_escalate else ()
    low, high = _range(a, pilot)
    whole = sum(s.seconds for s in stages)
    return Estimate(
        tuple(stages), samples=_samples(a), low=low, high=high, seconds_low=whole * low / JITTER,
        seconds_high=whole * high * JITTER, probed=0 if pilot is None else len(pilot.at),
        probe_seconds=0.0 if pilot is None else pilot.seconds, notes=notes,
    )  # fmt: skip


def _samples(a: RemainingWork) -> int:
    seen = np.asarray(a.known.seen(CLEAN, a.clean.chunk.ids.tolist()), dtype=bool)
    remaining = ~seen | (unfinished_samples(a) & a.clean.correct.cpu().numpy())
    return int(remaining.sum()) + round(a.rest)


def _sum(one: StageEstimate, more: StageEstimate, share: float) -> StageEstimate:
    numbers = {
        name: round(getattr(one, name) + share * getattr(more, name)) for name in ("samples", "forwards", "backwards")
    }
    return StageEstimate(one.stage, seconds=one.seconds + share * more.seconds, **numbers)


def _clean_stage(a: RemainingWork, pilot: Pilot | None) -> StageEstimate:
    ids = a.clean.chunk.ids.tolist()
    fresh = len(ids) - sum(a.known.seen(CLEAN, ids))
    n = fresh + a.rest
    # The first clean pass over the first chunk has been made; a randomised model needs more.
    passes = a.rest * a.context.draws + len(ids) * (a.context.draws - 1)
    shards = math.ceil(n / max(len(ids), 1))
    pace = a.pace if pilot is None else pilot.forward / pilot.block
    return StageEstimate(CLEAN, round(n), round(n), 0, passes * pace + STORING * n + SHARD * shards)


def _stage_cost(a: RemainingWork, pilot: Pilot | None, k: int, stage: Stage, g: PredictedOutcome) -> StageEstimate:
    n, answers = int(g.todo.sum()), int(g.answers[g.todo].sum())
    ranking = stage.ranking_passes
    return StageEstimate(
        stage.name,
        n,
        answers * stage.eot + n * ranking[0],
        round(answers * stage.eot * backwards_per_query(stage, a.clean.logits.shape[1])) + n * ranking[1],
        _seconds(a, pilot, k, stage, g.answers[g.todo]),
    )


def _seconds(a: RemainingWork, pilot: Pilot | None, k: int, stage: Stage, answers: Ints) -> float:
    if not len(answers):
        return 0.0
    block = stage_oracle(a.context, stage).block
    pace, forward = _pace(a, pilot, k, stage)
    blocks = math.ceil(len(answers) / block)
    verifying = VERIFYING if a.context.draws == 1 else 2 + 2 * a.context.draws
    iterations, queried = schedule(answers, a.context.slots, block)
    if a.context.graph_cache is not None and len(stage.attempts()) > 1:
        # Empty slots run later attempts: blocks stay full until the end.
        most = math.ceil(max(answers.sum() / block, answers.max() / len(stage.attempts())))
        iterations, queried = min(iterations, most), min(queried, most)
    attack = pace.seconds(iterations, queried)
    ranking = stage.ranking_passes[0] * (blocks * pace.block / stage.eot) if stage.ranking.needs_gradients else 0.0
    storing = STORING * len(answers) + SHARD * math.ceil(len(answers) / BATCH)
    return attack + ranking + verifying * blocks * forward + storing


def _pace(a: RemainingWork, pilot: Pilot | None, k: int, stage: Stage) -> tuple[Pace, float]:
    """Return the pace of a stage and the seconds of a forward pass, for blocks of the size that the stage uses."""
    block = stage_oracle(a.context, stage).block
    forward = a.pace * block if pilot is None else pilot.forward * block / pilot.block
    if pilot is not None and pilot.recorded and (each := pilot.recorded[k]) is not None:
        return Pace(0.0, each), forward
    measured = None if pilot is None else pilot.trials[k].pace
    if pilot is None or measured is None:
        return Pace(0.0, forward * stage.eot * (1 + 2 * backwards_per_query(stage, a.clean.logits.shape[1]))), forward
    return replace(measured, block=measured.block * block / pilot.block), forward


def _escalation(
    a: RemainingWork, stages: list[StageEstimate], here: list[PredictedOutcome], pilot: Pilot | None
) -> str:
    """Return a note with the cost of auditing all survivors; add this cost to `stages` if escalation is certain."""
    survivors = surviving(a, here)
    audited = [k for k, s in enumerate(a.stages) if s.is_audit]
    rest = survivors & ~attacked_by(a, a.stages[audited[0]])
    scale = 1 + a.rest / len(survivors)
    n = round(scale * len(survivors))
    audit = Audit(
        survivors=round(scale * int(survivors.sum())), audited=round(scale * int((survivors & ~rest).sum())), found=0,
        n=n, rest=round(scale * int(rest.sum())), cost=Cost(0, 0, 0.0, 0),
    )  # fmt: skip
    certain = a.escalate is True and (a.warned or audit.too_small(Proportion(audit.survivors, n)))
    more = []
    margins = a.clean.margin.cpu().numpy().astype(np.float64)
    for k in audited:
        stage = a.stages[k]
        answers, fell = stage_outcome(a, pilot, k, stage, margins, 1.0)
        cost = _stage_cost(a, pilot, k, stage, PredictedOutcome(rest, np.where(rest, answers, 0), fell & rest))
        more.append(_sum(replace(cost, samples=0, forwards=0, backwards=0, seconds=0.0), cost, scale))
        rest = rest & ~fell
    passes = rounded(sum(m.forwards + m.backwards for m in more))
    cost_text = f"{passes} passes, {duration(sum(m.seconds for m in more))}"
    if not certain:
        contradicted = f"If the audit contradicts the plan, auditing all survivors adds {cost_text}."
        return f"{contradicted} --audit 0 (audit=0) leaves it out: then the result is an upper bound."
    for k, m in zip(audited, more, strict=True):
        stages[k + 1] = _sum(stages[k + 1], m, 1.0)
    why = "a check warns" if a.warned else "the audit will be too small"
    return f"All survivors are audited, since {why}: {cost_text} of the above."


def _range(a: RemainingWork, pilot: Pilot | None) -> tuple[float, float]:
    """Return the factors `low` and `high` of `Estimate`.

    The range covers two standard errors of the pilot's sampling, and from none to twice the predicted number of
    successes after more queries than the pilot made.
    """
    if pilot is None:
        return 1.0, 1.0
    each = _passes(a, predict_outcomes(a, pilot, NOTHING_STORED, 1.0, everyone=True))
    mean = float(each.mean())
    if mean <= 0:
        return 1.0, 1.0
    attacked = int(a.clean.correct.sum()) + round(a.rest)
    unseen = max(0.0, 1 - len(pilot.at) / max(attacked, 1))
    error = float(each.std()) / mean / math.sqrt(len(pilot.at)) * math.sqrt(unseen)
    if all((t.ended | ~t.tried).all() for t in pilot.trials) and unseen == 0:
        return 1.0, 1.0
    others = [
        float(_passes(a, predict_outcomes(a, pilot, NOTHING_STORED, late, everyone=True)).mean()) / mean
        for late in (0.0, 2.0)
    ]
    return min(1.0, *others) * math.exp(-2 * error), max(1.0, *others) * math.exp(2 * error)


def _passes(a: RemainingWork, guesses: list[PredictedOutcome]) -> Numbers:
    classes = a.clean.logits.shape[1]
    total = np.ones(len(a.clean.chunk))
    for stage, g in zip(a.stages, guesses, strict=True):
        passes = g.answers * stage.eot * (1 + backwards_per_query(stage, classes)) + g.todo * sum(stage.ranking_passes)
        total = total + passes * stage.usual_share
    return total
