"""What an evaluation will cost, from a pilot on a few of its samples."""

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from brinell.core.attack import Needs, cycle
from brinell.evaluate.audit import in_audit
from brinell.evaluate.pilot import Clock, Flags, Ints, Numbers, Pace, Pilot, Trial, fly, schedule, undisturbed
from brinell.evaluate.plan import Plan, Stage
from brinell.evaluate.stages import BATCH, Setup, oracle_for
from brinell.evaluate.tables import Clean
from brinell.ops import rng
from brinell.results import CLEAN, Audit, Cost, Proportion
from brinell.results.stored import NOTHING, Known

# The probe's most seconds, its part of the time the run can take at most, and what it may take in any case.
PROBE, PART, LEAST = 2.0, 0.2, 1.0
# Beside the attack: passes that verify a sample (class, prediction, 8 bits), seconds to store a row and a shard.
VERIFYING, STORING, SHARD = 3, 6e-5, 0.015
# Clocks vary from minute to minute, on a machine that others use too: so much wider is the range of the time.
JITTER = 1.25


@dataclass(frozen=True)
class StageEstimate:
    """What one attack of the plan will probably cost: samples it sees, passes, seconds.

    >>> StageEstimate("pgd", samples=10, forwards=210, backwards=210, seconds=0.5).samples
    10
    """

    stage: str
    samples: int
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Passes and seconds an evaluation will probably take, stage by stage, with a range and what it rests on.

    `forwards` and `backwards` are what `Run.cost` should show, probably between `low` and `high` times that; `seconds`
    what the clock should, probably between `seconds_low` and `seconds_high`. `samples` are those left to evaluate,
    `probed` those that the estimate rests on.

    >>> import brinell
    >>> told = brinell.estimate("demo", brinell.data.load("demo")[:64], brinell.Linf(0.1), "pgd20")
    >>> [s.stage for s in told.stages], told.forwards <= 64 * 22, told.low <= 1 <= told.high
    (['clean', 'pgd-ce'], True, True)
    """

    stages: tuple[StageEstimate, ...]
    samples: int
    low: float
    high: float
    seconds_low: float
    seconds_high: float
    probed: int
    probe_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def forwards(self) -> int:
        """Forward passes, as the rows count them."""
        return sum(s.forwards for s in self.stages)

    @property
    def backwards(self) -> int:
        """Backward passes, as the rows count them."""
        return sum(s.backwards for s in self.stages)

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run."""
        return sum(s.seconds for s in self.stages)

    @property
    def basis(self) -> str:
        """What the numbers rest on."""
        return f"a probe of {self.probe_seconds:.1f} s on {self.probed:,} of {self.samples:,} samples"

    def __str__(self) -> str:
        passes = f"about {rounded(self.forwards)} forwards and {rounded(self.backwards)} backwards"
        spread = f"{duration(self.seconds_low)} to {duration(self.seconds_high)}"
        return f"{passes}, {duration(self.seconds)} ({spread}), by {self.basis}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            **asdict(self),
            "notes": list(self.notes),
            "stages": [asdict(s) for s in self.stages],
            "forwards": self.forwards,
            "backwards": self.backwards,
            "seconds": self.seconds,
            "sentence": str(self),
        }


def rounded(n: int) -> str:
    """Three digits are more than an estimate knows.

    >>> rounded(1234567), rounded(89)
    ('1,230,000', '89')
    """
    size = 10 ** max(len(str(abs(n))) - 3, 0)
    return f"{round(n / size) * size:,}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.3), duration(42.0), duration(300.0), duration(9000.0)
    ('0.3 s', '42 s', '5 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def budget(stage: Stage) -> int:
    """The most answers a sample can take."""
    return stage.attack.queries * len(stage.legs())


def usual(stage: Stage) -> int:
    """The answers that a sample takes which does not break: all of them, unless the attack knows when to give up."""
    return getattr(stage.attack, "usual_queries", stage.attack.queries) * len(stage.legs())


def backwards(stage: Stage, classes: int) -> float:
    """Backward passes per answer, on the average of the attack's cycle."""
    turns, cost = cycle(stage.attack), {Needs.LOGITS: 0, Needs.GRAD: 1, Needs.DETECTOR: 2, Needs.JACOBIAN: classes}
    return sum(cost[need] for need in turns) / len(turns)


def worst_seconds(plan: Plan, n: int, pace: float) -> float:
    """Seconds if no sample breaks, by the seconds of one row's forward pass."""
    weights = (budget(s) * s.eot * (1 + 2 * backwards(s, 10)) * (s.share or 1.0) for s in plan.stages)
    return n * pace * (1 + sum(weights))


@dataclass(frozen=True)
class Ahead:
    """What is to be estimated: the first chunk of the samples, how many more will come, and what a Run holds of them.

    `rest` counts samples beyond the chunk (of a resumed Run: as many as the work left there amounts to); `pace` is
    about the seconds of one row's forward pass; `warned`: a check did, which counts as doubt where one escalates.
    """

    setup: Setup
    plan: Plan
    clean: Clean
    rest: float
    pace: float
    known: Known = NOTHING
    individual: bool = False
    escalate: bool = False
    warned: bool = False


def foresee(a: Ahead, seconds: float | None = None, clock: Clock = time.perf_counter) -> Estimate:
    """The estimate, from a probe of at most so many seconds (default: a fifth of the longest run, 1 to 2)."""
    n = len(a.clean.chunk)
    if seconds is None:
        longest = worst_seconds(a.plan, n + math.ceil(a.rest), a.pace)
        seconds = min(PROBE, max(LEAST, PART * longest))
    correct = a.clean.correct.cpu().numpy()
    at = np.flatnonzero(correct if a.rest else correct & _left(a))
    with undisturbed(a.clean.logits.device):
        pilot = fly(a.setup, a.plan, a.clean, at, a.individual, seconds, a.pace, clock) if len(at) else None
    return _estimate(a, pilot)


def _left(a: Ahead) -> Flags:
    """Samples of the chunk that some stage may still have to see."""
    ids = a.clean.chunk.ids.tolist()
    left, standing = np.zeros(len(ids), dtype=bool), np.ones(len(ids), dtype=bool)
    for stage in a.plan.stages:
        chosen = _chosen(a, stage)
        left |= standing & chosen & ~np.asarray(a.known.seen(stage.name, ids), dtype=bool)
        if not a.individual:
            standing &= ~np.asarray(a.known.fell(stage.name, ids), dtype=bool)
    return left


def _chosen(a: Ahead, stage: Stage) -> Flags:
    if stage.share is None:
        return np.ones(len(a.clean.chunk), dtype=bool)
    return in_audit(a.setup.seed, a.clean.chunk.ids, stage.share).numpy()


@dataclass(frozen=True)
class _Guess:
    """Of every sample of the chunk, at one stage: attacked or not, for how many answers, and whether it falls."""

    todo: Flags
    answers: Ints
    fell: Flags


def _estimate(a: Ahead, pilot: Pilot | None) -> Estimate:
    here = _guesses(a, pilot, a.known, 1.0)
    fresh = _guesses(a, pilot, NOTHING, 1.0) if a.rest else here
    stages = [_clean_stage(a, pilot)]
    share = a.rest / len(a.clean.chunk)
    for k, stage in enumerate(a.plan.stages):
        one = _stage_cost(a, pilot, k, stage, here[k])
        more = _stage_cost(a, pilot, k, stage, fresh[k]) if a.rest else one
        stages.append(_sum(one, more, share))
    notes: tuple[str, ...] = ()
    if a.escalate:
        notes = (_escalation(a, stages, here, pilot),)
    low, high = _range(a, pilot)
    whole = sum(s.seconds for s in stages)
    return Estimate(
        tuple(stages),
        samples=_samples(a),
        low=low,
        high=high,
        seconds_low=whole * low / JITTER,
        seconds_high=whole * high * JITTER,
        probed=0 if pilot is None else len(pilot.at),
        probe_seconds=0.0 if pilot is None else pilot.seconds,
        notes=notes,
    )


def _samples(a: Ahead) -> int:
    seen = np.asarray(a.known.seen(CLEAN, a.clean.chunk.ids.tolist()), dtype=bool)
    left = ~seen | (_left(a) & a.clean.correct.cpu().numpy())
    return int(left.sum()) + round(a.rest)


def _sum(one: StageEstimate, more: StageEstimate, share: float) -> StageEstimate:
    numbers = {
        name: round(getattr(one, name) + share * getattr(more, name)) for name in ("samples", "forwards", "backwards")
    }
    return StageEstimate(one.stage, seconds=one.seconds + share * more.seconds, **numbers)


def _clean_stage(a: Ahead, pilot: Pilot | None) -> StageEstimate:
    ids = a.clean.chunk.ids.tolist()
    fresh = len(ids) - sum(a.known.seen(CLEAN, ids))
    n = fresh + a.rest
    # The first chunk's clean answers are known by now, but for the repetitions of a randomised model's judging.
    asked = a.rest * a.setup.draws + len(ids) * (a.setup.draws - 1)
    shards = math.ceil(n / max(len(ids), 1))
    pace = a.pace if pilot is None else pilot.forward / pilot.block
    return StageEstimate(CLEAN, round(n), round(n), 0, asked * pace + STORING * n + SHARD * shards)


def _donors(margins: Numbers, pilots: Numbers) -> Ints:
    """For every margin the place of the nearest one in the pilot, by order."""
    order = np.argsort(pilots, kind="stable")
    right = np.searchsorted(pilots[order], margins).clip(0, len(pilots) - 1)
    left = (right - 1).clip(0)
    nearer = np.abs(pilots[order][left] - margins) < np.abs(pilots[order][right] - margins)
    return order[np.where(nearer, left, right)]


def _guesses(a: Ahead, pilot: Pilot | None, known: Known, late: float, everyone: bool = False) -> list[_Guess]:
    """Every sample fares as the pilot's sample with the nearest clean margin did; `late` scales late successes.

    `everyone`: stages of an audit see all survivors.
    """
    ids, margins = a.clean.chunk.ids.tolist(), a.clean.margin.cpu().numpy().astype(np.float64)
    correct = a.clean.correct.cpu().numpy()
    standing = correct.copy()
    guesses = []
    for k, stage in enumerate(a.plan.stages):
        seen = np.asarray(known.seen(stage.name, ids), dtype=bool)
        todo = (correct if a.individual else standing) & (everyone | _chosen(a, stage)) & ~seen
        answers, fell = _fate(a, pilot, k, stage, margins, late)
        guess = _Guess(todo, np.where(todo, answers, 0), fell & todo)
        standing &= ~(guess.fell | np.asarray(known.fell(stage.name, ids), dtype=bool))
        guesses.append(guess)
    return guesses


def _fate(a: Ahead, pilot: Pilot | None, k: int, stage: Stage, margins: Numbers, late: float) -> tuple[Ints, Flags]:
    """How many answers each sample would take at this stage, and whether it would fall."""
    n, full = len(margins), usual(stage)
    trial = None if pilot is None else pilot.trials[k]
    if pilot is None or trial is None or not trial.tried.any():
        return np.full(n, full), np.zeros(n, dtype=bool)
    tried = np.flatnonzero(trial.tried)
    d = tried[_donors(margins, margins[pilot.at[tried]])]
    answers, fell = trial.answers[d].copy(), trial.fell[d].copy()
    cut = ~trial.ended[d]
    if cut.any():
        so_far = max(int(trial.answers[~trial.ended & trial.tried].max()), 1)
        chance = min(1.0, late * _later(trial, so_far, stage))
        u = _lots(a, stage)
        falls = cut & (u < chance)
        # Successes thin out: as many between 100 and 200 answers as between 200 and 400.
        when = so_far * max(full / so_far, 1.0) ** (u / max(chance, 1e-12)).clip(max=1.0)
        left = max(full, round(1.5 * so_far)) if full < budget(stage) else full
        answers = np.where(falls, when.astype(np.int64), np.where(cut, left, answers))
        fell |= falls
    if a.setup.draws > 1:
        answers = np.full(n, budget(stage))  # on a randomised model every attack runs to its end
    return answers, fell


def _later(trial: Trial, so_far: int, stage: Stage) -> float:
    """The chance of a sample that stood after so many answers to fall later, from who fell in the last half of them.

    Method: a gradient attack's chance halves with every doubling of the answers, that of random search stays.
    """
    there = trial.tried & ((trial.answers > so_far / 2) | ~trial.ended)
    fell = trial.fell & there
    chance = float(fell.sum()) / max(int(there.sum()), 1)
    stays, doublings = 1.0, math.log2(max(usual(stage) / so_far, 1.0))
    slower = 1.0 if stage.attack.needs is Needs.LOGITS else 0.5
    for j in range(math.ceil(doublings)):
        stays *= (1 - chance * slower**j) ** min(1.0, doublings - j)
    return 1 - stays


def _lots(a: Ahead, stage: Stage) -> Numbers:
    key = rng.fold(rng.keys(a.setup.seed, a.clean.chunk.ids), rng.digest(f"late {stage.name}"))
    return rng.uniform(key, (1,))[:, 0].double().numpy()


def _stage_cost(a: Ahead, pilot: Pilot | None, k: int, stage: Stage, g: _Guess) -> StageEstimate:
    n, answers = int(g.todo.sum()), int(g.answers[g.todo].sum())
    ranking = stage.ranking_passes
    return StageEstimate(
        stage.name,
        n,
        answers * stage.eot + n * ranking[0],
        round(answers * stage.eot * backwards(stage, a.clean.logits.shape[1])) + n * ranking[1],
        _seconds(a, pilot, k, stage, g.answers[g.todo]),
    )


def _seconds(a: Ahead, pilot: Pilot | None, k: int, stage: Stage, answers: Ints) -> float:
    if not len(answers):
        return 0.0
    block = oracle_for(a.setup, stage).block
    pace, forward = _pace(a, pilot, k, stage)
    blocks = math.ceil(len(answers) / block)
    verifying = VERIFYING if a.setup.draws == 1 else 2 + 2 * a.setup.draws
    attack = pace.seconds(*schedule(answers, a.setup.slots, block))
    ranking = stage.ranking_passes[0] * (blocks * pace.block / stage.eot) if stage.ranked_by is not None else 0.0
    storing = STORING * len(answers) + SHARD * math.ceil(len(answers) / BATCH)
    return attack + ranking + verifying * blocks * forward + storing


def _pace(a: Ahead, pilot: Pilot | None, k: int, stage: Stage) -> tuple[Pace, float]:
    """The pace of a stage and the seconds of a forward pass, both per block as the run has them."""
    block = oracle_for(a.setup, stage).block
    forward = a.pace * block if pilot is None else pilot.forward * block / pilot.block
    if pilot is not None and pilot.recorded and (each := pilot.recorded[k]) is not None:
        return Pace(0.0, each), forward
    found = None if pilot is None else pilot.trials[k].pace
    if pilot is None or found is None:
        return Pace(0.0, forward * stage.eot * (1 + 2 * backwards(stage, a.clean.logits.shape[1]))), forward
    return replace(found, block=found.block * block / pilot.block), forward


def _escalation(a: Ahead, stages: list[StageEstimate], here: list[_Guess], pilot: Pilot | None) -> str:
    """Add the full plan on the rest where it can be foreseen; in any case say what it would add."""
    survivors = _survivors(a, here)
    audited = [k for k, s in enumerate(a.plan.stages) if s.share is not None]
    rest = survivors & ~_chosen(a, a.plan.stages[audited[0]])
    scale = 1 + a.rest / len(survivors)
    n = round(scale * len(survivors))
    found = Audit(
        survivors=round(scale * int(survivors.sum())),
        audited=round(scale * int((survivors & ~rest).sum())),
        found=0,
        n=n,
        rest=round(scale * int(rest.sum())),
        cost=Cost(0, 0, 0.0, 0),
    )
    sure = a.warned or found.too_small(Proportion(found.survivors, n))
    more = []
    margins = a.clean.margin.cpu().numpy().astype(np.float64)
    for k in audited:
        stage = a.plan.stages[k]
        answers, fell = _fate(a, pilot, k, stage, margins, 1.0)
        cost = _stage_cost(a, pilot, k, stage, _Guess(rest, np.where(rest, answers, 0), fell & rest))
        more.append(_sum(replace(cost, samples=0, forwards=0, backwards=0, seconds=0.0), cost, scale))
        rest = rest & ~fell
    passes = rounded(sum(m.forwards + m.backwards for m in more))
    cost_text = f"{passes} passes, {duration(sum(m.seconds for m in more))}"
    if not sure:
        return f"Should the audit object, the full plan on the rest adds {cost_text}."
    for k, m in zip(audited, more, strict=True):
        stages[k + 1] = _sum(stages[k + 1], m, 1.0)
    why = "a check warns" if a.warned else "the audit will be too small"
    return f"With the full plan on the rest, since {why}: {cost_text} of the above."


def _survivors(a: Ahead, guesses: list[_Guess]) -> Flags:
    standing: Flags = a.clean.correct.cpu().numpy().copy()
    for g in guesses:
        standing &= ~g.fell
    return standing


def _range(a: Ahead, pilot: Pilot | None) -> tuple[float, float]:
    """Between which multiples of the estimate the passes lie: twice the sampling error, and none or twice as many late
    successes."""
    if pilot is None:
        return 1.0, 1.0
    each = _passes(a, _guesses(a, pilot, NOTHING, 1.0, everyone=True))
    mean = float(each.mean())
    if mean <= 0:
        return 1.0, 1.0
    attacked = int(a.clean.correct.sum()) + round(a.rest)
    unseen = max(0.0, 1 - len(pilot.at) / max(attacked, 1))
    error = float(each.std()) / mean / math.sqrt(len(pilot.at)) * math.sqrt(unseen)
    if all((t.ended | ~t.tried).all() for t in pilot.trials) and unseen == 0:
        return 1.0, 1.0
    others = [float(_passes(a, _guesses(a, pilot, NOTHING, late, everyone=True)).mean()) / mean for late in (0.0, 2.0)]
    return min(1.0, *others) * math.exp(-2 * error), max(1.0, *others) * math.exp(2 * error)


def _passes(a: Ahead, guesses: list[_Guess]) -> Numbers:
    """Passes of every sample; who is audited is known, so of an audit each one takes its share."""
    classes = a.clean.logits.shape[1]
    total = np.ones(len(a.clean.chunk))
    for stage, g in zip(a.plan.stages, guesses, strict=True):
        own = g.answers * stage.eot * (1 + backwards(stage, classes)) + g.todo * sum(stage.ranking_passes)
        total = total + own * (stage.share or 1.0)
    return total
