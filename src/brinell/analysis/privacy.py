"""Whether a model's answers tell which samples it was trained on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brinell.analysis.intervals import (
    Bools,
    Floats,
    independent_difference,
    mean_of_two,
    percent,
    split_halves,
)
from brinell.analysis.predictions import (
    AnyRun,
    Predictions,
    largest_loss_points,
    open_run,
    predict,
    read_chunks,
    require_misclassification,
    require_same_model,
    with_adversarials,
)
from brinell.attacks import PGD
from brinell.core.attack import AnyAttack
from brinell.core.dataset import Chunk, Problem
from brinell.core.threat import Threat
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Difference, Interval, Proportion, paired_difference
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table

# Ten steps of a quarter of the radius, for every sample to the end: not stopped where a sample breaks.
ATTACK = PGD(steps=10)


@dataclass(frozen=True)
class Leakage:
    """What one kind of inputs gives away; every accuracy is the mean of members and others, 1/2 being a guess.

    `best` is the paper's: the best threshold on the confidence in the label, chosen and measured on the same samples,
    never below 1/2. `honest` measures each half at the other half's threshold. `label` calls a sample a member where
    the model is right about it: 1/2 plus half the generalisation gap. `beyond` is what confidences tell more than that
    baseline, sample by sample.
    """

    inputs: str
    members: Proportion
    others: Proportion
    best: float
    honest: Interval
    label: Interval
    beyond: Difference

    @property
    def gap(self) -> Difference:
        """Accuracy on members minus accuracy on others."""
        return independent_difference(self.members, self.others)


@dataclass(frozen=True)
class Privacy:
    """Membership inference from confidences on clean and, where asked for, adversarial inputs."""

    model: str
    clean: Leakage
    adversarial: Leakage | None = None

    @property
    def sides(self) -> tuple[Leakage, ...]:
        """Clean, then adversarial where it was looked at."""
        return (self.clean,) if self.adversarial is None else (self.clean, self.adversarial)

    def findings(self) -> AnalysisReport:
        """For a page: the numbers of each kind of inputs."""
        sides = self.sides
        rows: list[tuple[Cell, ...]] = [
            ("members, others", *(f"{s.members.n}, {s.others.n}" for s in sides)),
            ("accuracy on members, %", *(percent(s.members) for s in sides)),
            ("accuracy on others, %", *(percent(s.others) for s in sides)),
            ("generalisation gap, points", *(percent(s.gap) for s in sides)),
            ("told by confidence, %", *(percent(s.honest) for s in sides)),
            # No interval: chosen on the samples it is measured on, it is above 50 % for any model.
            ("  best threshold, chosen on these samples, %", *(f"{100 * s.best:.1f} (no interval)" for s in sides)),
            ("told by the label alone, %", *(percent(s.label) for s in sides)),
            ("confidence beyond the label, points", *(percent(s.beyond) for s in sides)),
        ]
        table = Table("Membership", ("", *(s.inputs for s in sides)), tuple(rows))
        told = (
            f"From confidences on {s.inputs} inputs membership is told in {percent(s.honest)} % of cases, from the "
            f"label alone in {percent(s.label)} % (a guess: 50 %)."
            for s in sides
        )
        bars = tuple(
            _bars(name, [getattr(s, part) for s in self.sides], [s.inputs for s in self.sides])
            for name, part in (("by confidence", "honest"), ("by label", "label"))
        )
        figure = Figure("Membership inference", "bars", "inputs", "accuracy (%)", bars)
        return AnalysisReport("privacy", "Privacy leakage", " ".join(told), (table,), (figure,))


def _bars(name: str, values: Sequence[Interval], x: Sequence[str]) -> Series:
    y, low, high = (tuple(100 * getattr(v, part) for v in values) for part in ("value", "low", "high"))
    return Series(name, tuple(x), y, low, high)


def privacy(
    classifier: Any,
    members: Any,
    others: Any,
    *,
    runs: tuple[AnyRun, AnyRun] | None = None,
    threat: Threat | None = None,
    attack: AnyAttack = ATTACK,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Privacy:
    """How well training samples (`members`) can be told from `others` by the model's confidence in their label.

    Method: a threshold on the confidence, chosen on one random half (of each) and measured on the other, both ways;
    beside it the paper's, chosen and measured on all, and the baseline that only looks whether the label is right.
    Adversarial inputs come from `runs` (of members, of others; samples that did not break stay clean) or, with a
    `threat`, from an attack on every sample to the end of its budget, as in the paper. Cost: one forward per sample,
    and with a threat the attack's. Reference: Song & Mittal 2021; Croce et al. 2021, sec. 4 and appendix.

    >>> import brinell
    >>> data = brinell.data.load("demo", 120)
    >>> found = privacy("demo", data[:60], data[60:])
    >>> found.clean.honest.n, found.clean.best >= 0.5
    (120, True)
    """
    if runs is not None and threat is not None:
        raise InputError(
            expected="Runs or a threat",
            got="both",
            remedy="Adversarial inputs come from one of the two.",
        )
    model = coerce.as_classifier(classifier, device)
    data = (coerce.as_problem(members), coerce.as_problem(others))

    def side(name: str, chunks: "Sequence[Iterable[Chunk]]") -> Leakage:
        first, second = (predict(model, part) for part in chunks)
        return leakage(first, second, name, seed)

    clean = side("clean", [read_chunks(d) for d in data])
    if threat is not None:
        wanted = coerce.as_threat(threat)
        return Privacy(
            model.name, clean, side("adversarial", [largest_loss_points(model, d, wanted, attack, seed) for d in data])
        )
    if runs is None:
        return Privacy(model.name, clean)
    return Privacy(
        model.name, clean, side("adversarial", [_of_run(r, model, d) for r, d in zip(runs, data, strict=True)])
    )


def _of_run(run: AnyRun, model: Any, data: Problem) -> Iterable[Chunk]:
    run = open_run(run)
    require_same_model(run, model)
    require_misclassification(run)
    return with_adversarials(run, data)


def leakage(members: Predictions, others: Predictions, name: str = "clean", seed: int = 0) -> Leakage:
    """The numbers of one kind of inputs."""
    if min(len(members), len(others)) < 2:
        raise InputError(
            expected="at least 2 members and 2 others",
            got=f"{len(members)} and {len(others)}",
            remedy="A threshold needs a half to be chosen on, and one to be measured on.",
        )
    own, foreign = members.true_confidence, others.true_confidence
    right = Proportion(int(members.right.sum()), len(members)), Proportion(int(others.right.sum()), len(others))
    wrong = Proportion(right[1].n - right[1].k, right[1].n)
    first = split_halves(members.ids, seed, "members"), split_halves(others.ids, seed, "others")
    called = _called(own, foreign, *first)
    told, kept = (Proportion(int(hit.sum()), len(hit)) for hit in called)
    baseline = mean_of_two(right[0], wrong)
    beyond = _beyond(called, (members.right, ~others.right))
    return Leakage(name, *right, best_threshold(own, foreign)[1], mean_of_two(told, kept), baseline, beyond)


def best_threshold(members: Floats, others: Floats) -> tuple[float, float]:
    """The threshold with the best mean of members at or above it and others below, and that mean.

    Method: all of them, from the sorted scores; −inf, which calls everything a member, is one. Of equally good ones the
    one in the middle, so that no threshold lies next to the sample it was fitted to for no reason.

    >>> best_threshold(np.array([3.0, 2.0]), np.array([1.0, 0.0]))
    (1.5, 1.0)
    """
    scores = np.unique(np.concatenate([members, others]))
    cuts = np.concatenate([[-np.inf], (scores[1:] + scores[:-1]) / 2, [np.inf]])
    found = 1 - np.searchsorted(np.sort(members), cuts, side="left") / len(members)
    kept = np.searchsorted(np.sort(others), cuts, side="left") / len(others)
    value = (found + kept) / 2
    best = np.flatnonzero(value >= value.max() - 1e-12)
    return float(cuts[best[(len(best) - 1) // 2]]), float(value.max())


def _called(members: Floats, others: Floats, first: Bools, second: Bools) -> tuple[Bools, Bools]:
    """Which members and which others are told for what they are, each half at the threshold of the other."""
    told, kept = np.zeros(len(members), dtype=bool), np.zeros(len(others), dtype=bool)
    for a, b in ((first, second), (~first, ~second)):
        threshold, _ = best_threshold(members[a], others[b])
        told[~a], kept[~b] = members[~a] >= threshold, others[~b] < threshold
    return told, kept


def _beyond(called: tuple[Bools, Bools], label: tuple[Bools, Bools]) -> Difference:
    """Accuracy by confidence minus accuracy by the label, over the same samples; members and others count half each.

    Method: Newcombe's paired interval of either group, squared and added, as in `mean_of_two`.
    """
    parts = [
        paired_difference(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
        for a, b in zip(called, label, strict=True)
    ]
    value = sum(p.value for p in parts) / 2
    down = math.hypot(*(p.value - p.low for p in parts)) / 2
    return Difference(value, value - down, value + math.hypot(*(p.high - p.value for p in parts)) / 2)
