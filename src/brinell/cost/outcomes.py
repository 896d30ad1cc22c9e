"""Predict the outcome of every sample from the pilot, a short trial of the plan on a few samples."""

import math
from dataclasses import dataclass

import numpy as np

from brinell.core.attack import Requires
from brinell.core.plan import Plan, Stage, Stages
from brinell.cost.budget import max_queries, usual_queries
from brinell.cost.pilot import Flags, Ints, Numbers, Pilot, StageTrial, spread
from brinell.evaluation.audit import in_audit
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean
from brinell.ops import rng
from brinell.results.format.resume import NOTHING_STORED, StoredOutcomes


@dataclass(frozen=True)
class RemainingWork:
    """The work to estimate: the first chunk of samples, the number of further samples, and the stored outcomes.

    `rest` is the number of unfinished samples beyond the chunk. `pace` is roughly the seconds of one row's forward
    pass. `warned` says that a check warns, which leads to escalation.
    """

    context: StageContext
    plan: Plan
    clean: Clean
    rest: float
    pace: float
    known: StoredOutcomes = NOTHING_STORED
    individual: bool = False
    escalate: bool | None = False
    warned: bool = False

    @property
    def stages(self) -> Stages:
        return self.plan.stages_for(self.context.threat)


@dataclass(frozen=True)
class PredictedOutcome:
    """The predicted outcome of one stage, with one entry per sample of the chunk.

    `todo` says whether the stage attacks the sample, `answers` is its number of queries, and `fell` says whether it
    succeeds.
    """

    todo: Flags
    answers: Ints
    fell: Flags


def unfinished_samples(a: RemainingWork) -> Flags:
    """Return a mask of the samples of the chunk that some stage may still attack."""
    ids = a.clean.chunk.ids.tolist()
    remaining, standing = np.zeros(len(ids), dtype=bool), np.ones(len(ids), dtype=bool)
    for stage in a.stages:
        chosen = attacked_by(a, stage)
        remaining |= standing & chosen & ~np.asarray(a.known.seen(stage.name, ids), dtype=bool)
        if not a.individual:
            standing &= ~np.asarray(a.known.fell(stage.name, ids), dtype=bool)
    return remaining


def attacked_by(a: RemainingWork, stage: Stage) -> Flags:
    """Return a mask of the samples that the stage attacks: all samples, or the samples that an audit draws.

    Which samples are near the boundary is not known before the attack. As many as usually are stand for them, spread
    evenly over the clean margins.
    """
    drawn: Flags = in_audit(a.context.seed, a.clean.chunk.ids, stage.sampled_share).numpy()
    if stage.near:
        margins = a.clean.margin.cpu().numpy().astype(np.float64)
        drawn[spread(margins, round((stage.usual_share - stage.sampled_share) * len(drawn)), 0.5)] = True
    return drawn


def _nearest(margins: Numbers, pilots: Numbers) -> Ints:
    """Return for every margin the index of the nearest margin in `pilots`, the margins of the pilot's samples."""
    order = np.argsort(pilots, kind="stable")
    right = np.searchsorted(pilots[order], margins).clip(0, len(pilots) - 1)
    left = (right - 1).clip(0)
    nearer = np.abs(pilots[order][left] - margins) < np.abs(pilots[order][right] - margins)
    return order[np.where(nearer, left, right)]


def predict_outcomes(
    a: RemainingWork, pilot: Pilot | None, known: StoredOutcomes, late: float, everyone: bool = False
) -> list[PredictedOutcome]:
    """Return a prediction per stage: each sample gets the outcome of the pilot's sample with the nearest clean margin.

    `late` scales the chance that samples break after more queries than the pilot made. With `everyone`, audits attack
    all survivors.
    """
    ids, margins = a.clean.chunk.ids.tolist(), a.clean.margin.cpu().numpy().astype(np.float64)
    correct = a.clean.correct.cpu().numpy()
    standing = correct.copy()
    guesses = []
    for k, stage in enumerate(a.stages):
        seen = np.asarray(known.seen(stage.name, ids), dtype=bool)
        todo = (correct if a.individual else standing) & (everyone | attacked_by(a, stage)) & ~seen
        answers, fell = stage_outcome(a, pilot, k, stage, margins, late)
        guess = PredictedOutcome(todo, np.where(todo, answers, 0), fell & todo)
        standing &= ~(guess.fell | np.asarray(known.fell(stage.name, ids), dtype=bool))
        guesses.append(guess)
    return guesses


def stage_outcome(
    a: RemainingWork, pilot: Pilot | None, k: int, stage: Stage, margins: Numbers, late: float
) -> tuple[Ints, Flags]:
    """Return for each sample the predicted number of queries at this stage, and whether the sample breaks."""
    n, full = len(margins), usual_queries(stage)
    trial = None if pilot is None else pilot.trials[k]
    if pilot is None or trial is None or not trial.tried.any():
        return np.full(n, full), np.zeros(n, dtype=bool)
    tried = np.flatnonzero(trial.tried)
    d = tried[_nearest(margins, margins[pilot.at[tried]])]
    answers, fell = trial.answers[d].copy(), trial.fell[d].copy()
    cut = ~trial.ended[d]
    if cut.any():
        so_far = max(int(trial.answers[~trial.ended & trial.tried].max()), 1)
        chance = min(1.0, late * _later(trial, so_far, stage))
        u = _uniforms(a, stage)
        falls = cut & (u < chance)
        # Successes get rarer: as many between 100 and 200 queries as between 200 and 400.
        when = so_far * max(full / so_far, 1.0) ** (u / max(chance, 1e-12)).clip(max=1.0)
        survivor = max(full, round(1.5 * so_far)) if full < max_queries(stage) else full
        answers = np.where(falls, when.astype(np.int64), np.where(cut, survivor, answers))
        fell |= falls
    if a.context.draws > 1:
        answers = np.full(n, max_queries(stage))  # attacks on randomised models use their whole budget
    return answers, fell


def _later(trial: StageTrial, so_far: int, stage: Stage) -> float:
    """Return the chance that a sample unbroken after `so_far` queries breaks later.

    Method: the chance for the next doubling of the queries is the share of samples that broke in the last doubling,
    from so_far/2 to `so_far` queries. For gradient attacks the chance halves with every further doubling.
    """
    there = trial.tried & ((trial.answers > so_far / 2) | ~trial.ended)
    fell = trial.fell & there
    chance = float(fell.sum()) / max(int(there.sum()), 1)
    stays, doublings = 1.0, math.log2(max(usual_queries(stage) / so_far, 1.0))
    slower = 1.0 if stage.attack.requires is Requires.LOGITS else 0.5
    for j in range(math.ceil(doublings)):
        stays *= (1 - chance * slower**j) ** min(1.0, doublings - j)
    return 1 - stays


def _uniforms(a: RemainingWork, stage: Stage) -> Numbers:
    key = rng.fold(rng.keys(a.context.seed, a.clean.chunk.ids), rng.digest(f"late {stage.name}"))
    return rng.uniform(key, (1,))[:, 0].double().numpy()


def surviving(a: RemainingWork, guesses: list[PredictedOutcome]) -> Flags:
    """Return a mask of the samples that no stage is predicted to break."""
    standing: Flags = a.clean.correct.cpu().numpy().copy()
    for g in guesses:
        standing &= ~g.fell
    return standing
