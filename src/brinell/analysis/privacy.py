"""Privacy: whether a model's confidence reveals which samples it was trained on (membership inference)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brinell.analysis.intervals import (
    Bools,
    Floats,
    independent_difference,
    interval_series,
    mean_of_two,
    percent,
    split_halves,
)
from brinell.analysis.predictions import (
    AnyRun,
    CleanAndAdversarial,
    Predictions,
    largest_loss_points,
    open_run_of,
    predict,
    read_chunks,
    with_adversarials,
)
from brinell.arguments import DataLike, ModelLike
from brinell.attacks import PGD
from brinell.core.attack import AnyAttack
from brinell.core.dataset import Chunk
from brinell.core.threat import Threat
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Difference, Interval, Proportion, paired_difference
from brinell.results.analyses import AnalysisReport, Cell, Figure, Measure

# Ten steps of a quarter of the radius, run to the end for every sample.
ATTACK = PGD(steps=10)


@dataclass(frozen=True)
class Leakage:
    """The results of membership inference (training member or held-out sample?) on one kind of inputs.

    `members` and `others` are the classification accuracies on training members and on held-out samples. The other
    numbers are accuracies of inference; both groups count half, so guessing gives 1/2. `best` uses the best threshold
    on the confidence in the label, chosen and measured on the same samples, as in Croce et al. 2021; it is never below
    1/2. `honest` uses a threshold chosen on one half of the samples and measured on the other half. `label` calls
    correctly classified samples members. `beyond` is `honest` minus `label`, with a paired interval.
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
        """The generalisation gap: classification accuracy on training members minus accuracy on held-out samples."""
        return independent_difference(self.members, self.others)


@dataclass(frozen=True)
class Privacy(CleanAndAdversarial[Leakage]):
    """The results of membership inference from confidence on clean and, if requested, on adversarial inputs."""

    def findings(self) -> AnalysisReport:
        """Return a table with one column per kind of inputs (clean, adversarial), and a figure."""
        rows: dict[str, Callable[[Leakage], Cell]] = {
            "members, others": lambda s: f"{s.members.n}, {s.others.n}",
            "accuracy on members, %": lambda s: percent(s.members),
            "accuracy on others, %": lambda s: percent(s.others),
            "generalisation gap, points": lambda s: percent(s.gap),
            "inferred from confidence, %": lambda s: percent(s.honest),
            # No interval: chosen and measured on the same samples, it exceeds 50 % for any model.
            "  best threshold, chosen on these samples, %": lambda s: f"{100 * s.best:.1f} (no interval)",
            "inferred from correctness alone, %": lambda s: percent(s.label),
            "gain of confidence over correctness, points": lambda s: percent(s.beyond),
        }
        sentences = (
            f"On {s.inputs} inputs, confidence reveals membership in {percent(s.honest)} % of cases, correctness alone "
            f"in {percent(s.label)} % (guessing: 50 %)."
            for s in self.sides
        )
        names = [s.inputs for s in self.sides]
        bars = (
            interval_series("by confidence", names, [s.honest for s in self.sides]),
            interval_series("by label", names, [s.label for s in self.sides]),
        )
        table = self.table("Membership", rows)
        figure = Figure("Membership inference", "bars", "inputs", "accuracy (%)", bars)
        return AnalysisReport("privacy", "Privacy leakage", " ".join(sentences), (table,), (figure,))

    def measures(self) -> tuple[Measure, ...]:
        """Return `best`, `best` against the generalisation gap (Croce et al. 2021, fig. 7), and `honest`.

        All are for adversarial inputs or, if these were not measured, for clean inputs.
        """
        side, best = self.sides[-1], 100 * self.sides[-1].best
        gap = ("generalisation gap, points", 100 * side.gap.value)
        return (
            Measure("membership inference, best threshold, %", best),
            Measure("membership inference, best threshold, % at gap", best, x=gap),
            Measure.percent("membership inference, threshold of the other half, %", side.honest),
        )


def privacy(
    classifier: ModelLike, members: DataLike, others: DataLike,
    *, runs: tuple[AnyRun, AnyRun] | None = None, threat: Threat | None = None, attack: AnyAttack = ATTACK,
    seed: int = 0, device: torch.device | str | None = None,
) -> Privacy:  # fmt: skip
    """Measure how well confidence in the label separates training samples (`members`) from held-out samples (`others`).

    Method: a threshold on the confidence is chosen on a random half of each group and measured on the other half, then
    the halves are exchanged. The result also holds the number of Croce et al. (threshold chosen and measured on all
    samples) and a baseline that calls correctly classified samples members. Adversarial inputs come from `runs` (the
    Run on members, then the Run on others; unbroken samples stay clean) or, with a `threat`, from `attack`, which runs
    its full budget on every sample, as in Croce et al. Cost: one forward per sample, plus the attack if there is a
    threat. Reference: Song & Mittal 2021; Croce et al. 2021, sec. 4 and appendix.

    >>> import brinell
    >>> data = brinell.data.load("demo", 120)
    >>> clean = privacy("demo", data[:60], data[60:]).clean
    >>> clean.honest.n, clean.best >= 0.5
    (120, True)
    """
    if runs is not None and threat is not None:
        raise InputError(expected="Runs or a threat", got="both", remedy="Omit `runs` (--run) or `threat` (--eps).")
    model = coerce.as_classifier(classifier, device)
    data = (coerce.as_problem(members), coerce.as_problem(others))

    def side(name: str, chunks: Sequence[Iterable[Chunk]]) -> Leakage:
        first, second = (predict(model, part) for part in chunks)
        return leakage(first, second, name, seed)

    clean, adversarial = side("clean", [read_chunks(d) for d in data]), None
    if threat is not None:
        bound = coerce.as_threat(threat)
        adversarial = side("adversarial", [largest_loss_points(model, d, bound, attack, seed) for d in data])
    elif runs is not None:
        opened = [(open_run_of(run, model), d) for run, d in zip(runs, data, strict=True)]
        adversarial = side("adversarial", [with_adversarials(run, d) for run, d in opened])
    return Privacy(model.name, clean, adversarial)


def leakage(members: Predictions, others: Predictions, name: str = "clean", seed: int = 0) -> Leakage:
    """Return the results of membership inference; `name` is the kind of inputs of both predictions, e.g. "clean"."""
    if min(len(members), len(others)) < 2:
        raise InputError(
            expected="at least 2 members and 2 others",
            got=f"{len(members)} members and {len(others)} others",
            remedy="Pass more samples: one half chooses the threshold, the other half tests it.",
        )
    member_scores, other_scores = members.true_confidence, others.true_confidence
    right = members.accuracy, others.accuracy
    wrong = Proportion(right[1].n - right[1].k, right[1].n)
    first = split_halves(members.ids, seed, "members"), split_halves(others.ids, seed, "others")
    called = _called(member_scores, other_scores, *first)
    found, rejected = (Proportion.of(hit) for hit in called)
    baseline = mean_of_two(right[0], wrong)
    beyond = _beyond(called, (members.right, ~others.right))
    return Leakage(
        name, *right, best_threshold(member_scores, other_scores)[1], mean_of_two(found, rejected), baseline, beyond
    )


def best_threshold(members: Floats, others: Floats) -> tuple[float, float]:
    """Return the best threshold t on the scores, and its accuracy: the mean of P(member ≥ t) and P(other < t).

    Method: try −inf (every sample is called a member), all midpoints of adjacent scores, and inf. Of several
    equally good thresholds, return the middle one.

    >>> best_threshold(np.array([3.0, 2.0]), np.array([1.0, 0.0]))
    (1.5, 1.0)
    """
    scores = np.unique(np.concatenate([members, others]))
    cuts = np.concatenate([[-np.inf], (scores[1:] + scores[:-1]) / 2, [np.inf]])
    found = 1 - np.searchsorted(np.sort(members), cuts, side="left") / len(members)
    rejected = np.searchsorted(np.sort(others), cuts, side="left") / len(others)
    value = (found + rejected) / 2
    best = np.flatnonzero(value >= value.max() - 1e-12)
    return float(cuts[best[(len(best) - 1) // 2]]), float(value.max())


def _called(members: Floats, others: Floats, first: Bools, second: Bools) -> tuple[Bools, Bools]:
    """Return masks of correctly inferred members and of correctly inferred others.

    `first` masks one half of the members, `second` one half of the others. The threshold for a half is chosen on the
    other half.
    """
    found, rejected = np.zeros(len(members), dtype=bool), np.zeros(len(others), dtype=bool)
    for a, b in ((first, second), (~first, ~second)):
        threshold, _ = best_threshold(members[a], others[b])
        found[~a], rejected[~b] = members[~a] >= threshold, others[~b] < threshold
    return found, rejected


def _beyond(called: tuple[Bools, Bools], label: tuple[Bools, Bools]) -> Difference:
    """Return the accuracy of inference from confidence minus the accuracy of inference from correct classification.

    Members and others count half each. Method: the squared half-widths of their paired Newcombe intervals add up.
    """
    groups = [
        paired_difference(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
        for a, b in zip(called, label, strict=True)
    ]
    value = sum(p.value for p in groups) / 2
    down = math.hypot(*(p.value - p.low for p in groups)) / 2
    return Difference(value, value - down, value + math.hypot(*(p.high - p.value for p in groups)) / 2)
