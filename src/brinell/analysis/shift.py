"""How much accuracy is left on data from elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brinell.analysis.answers import CHUNK, Answers, answers
from brinell.analysis.numbers import difference, percent
from brinell.errors import InputError
from brinell.evaluate import inputs
from brinell.results import Difference, Proportion, paired_difference
from brinell.results.findings import Figure, Findings, Series, Table


@dataclass(frozen=True)
class Shifted:
    """One data set: the accuracy on it, and that minus the accuracy at home.

    `paired` says whether both are about the same samples (equal ids and labels), which narrows the interval.
    """

    name: str
    accuracy: Proportion
    gap: Difference
    paired: bool


@dataclass(frozen=True)
class Shift:
    """Accuracy at home and elsewhere."""

    model: str
    home: Proportion
    sets: tuple[Shifted, ...]

    @property
    def mean(self) -> float:
        """The mean accuracy over the other data sets, each counting alike."""
        return sum(s.accuracy.value for s in self.sets) / len(self.sets)

    @property
    def worst(self) -> Shifted:
        """The data set with the lowest accuracy."""
        return min(self.sets, key=lambda s: s.accuracy.value)

    def findings(self) -> Findings:
        """For a page: one row per data set."""
        rows = tuple(
            (s.name, s.accuracy.n, percent(s.accuracy), percent(s.gap), "yes" if s.paired else "no") for s in self.sets
        )
        table = (("own data", self.home.n, percent(self.home), "", ""), *rows)
        summary = (
            f"Accuracy is {percent(self.home)} % on the model's own data (n = {self.home.n}) and "
            f"{100 * self.mean:.1f} % on average over {len(self.sets)} others; worst on {self.worst.name}: "
            f"{percent(self.worst.accuracy)} %, {percent(self.worst.gap)} points."
        )
        shares = (self.home, *(s.accuracy for s in self.sets))
        bars = Series(
            "accuracy",
            ("own data", *(s.name for s in self.sets)),
            tuple(100 * p.value for p in shares),
            tuple(100 * p.low for p in shares),
            tuple(100 * p.high for p in shares),
        )
        figure = Figure("Accuracy elsewhere", "bars", "data", "accuracy (%)", (bars,))
        columns = ("data", "n", "accuracy %", "gap, points", "same samples")
        return Findings("shift", "Distribution shift", summary, (Table("Data sets", columns, table),), (figure,))


def shift(classifier: Any, problem: Any, sets: Mapping[str, Any], *, device: torch.device | str | None = None) -> Shift:
    """The accuracy on other data sets (name to problem: corruptions, new samples, other sources) beside that at home.

    Method: the gap is the accuracy there minus that on `problem`; where both hold the same samples, under the same ids
    and labels, Newcombe's paired interval, else that for independent samples. Cost: one forward per sample.
    Reference: Taori et al. 2020; Croce et al. 2021, sec. 4.

    >>> import brinell
    >>> home = brinell.data.load("demo", 100)
    >>> dark = brinell.Problem(home.x / 4, home.y, home.ids)
    >>> found = shift("demo", home, {"dark": dark})
    >>> found.sets[0].paired, found.sets[0].gap.value < 0
    (True, True)
    """
    if not sets:
        raise InputError(
            expected="at least one other data set", got="none", remedy="Give a mapping from names to problems."
        )
    model = inputs.as_classifier(classifier, device)
    home = answers(model, inputs.as_problem(problem).chunks(CHUNK))
    found = tuple(
        _shifted(name, home, answers(model, inputs.as_problem(other).chunks(CHUNK))) for name, other in sets.items()
    )
    return Shift(model.name, _accuracy(home), found)


def _accuracy(said: Answers) -> Proportion:
    return Proportion(int(said.right.sum()), len(said))


def _shifted(name: str, home: Answers, there: Answers) -> Shifted:
    here, away = np.argsort(home.ids), np.argsort(there.ids)
    paired = np.array_equal(home.ids[here], there.ids[away]) and torch.equal(home.y[here], there.y[away])
    if not paired:
        return Shifted(name, _accuracy(there), difference(_accuracy(there), _accuracy(home)), False)
    a, b = there.right[away], home.right[here]
    counts = (int((x & y).sum()) for x, y in ((a, b), (a, ~b), (~a, b), (~a, ~b)))
    return Shifted(name, _accuracy(there), paired_difference(*counts), True)
