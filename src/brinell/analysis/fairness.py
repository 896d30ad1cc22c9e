"""Fairness: whether a model is equally accurate and robust for every class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brinell.analysis.intervals import DRAWS, Floats, Ints, basic_bootstrap, interval_series, percent, uniforms
from brinell.analysis.predictions import AnyRun
from brinell.errors import InputError, RunError
from brinell.results import Evidence, Interval, Proportion, Run, is_evidence, row_queries
from brinell.results.analyses import AnalysisReport, Figure, Measure, Table


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of one class: without an attack (`clean`) and under all attacks of the Run (`robust`)."""

    label: int
    name: str
    clean: Proportion
    robust: Proportion


@dataclass(frozen=True)
class ClassSpread:
    """The inequality of the class accuracies: `rsd` is their standard deviation divided by their mean.

    `rsd` is 0 if all accuracies are equal, and None if all are 0. `p_value` is the probability of an `rsd` at least as
    large if all classes had the same true accuracy.
    """

    rsd: Interval | None
    p_value: float


@dataclass(frozen=True)
class Fairness:
    """The clean and robust accuracy of every class, and the inequality of both over the classes."""

    model: str
    classes: tuple[ClassAccuracy, ...]
    clean: ClassSpread
    robust: ClassSpread

    @property
    def worst(self) -> ClassAccuracy:
        """The class with the lowest robust accuracy; of equal classes, the first."""
        return min(self.classes, key=lambda c: c.robust.value)

    @property
    def best(self) -> ClassAccuracy:
        """The class with the highest robust accuracy; of equal classes, the first."""
        return max(self.classes, key=lambda c: c.robust.value)

    def findings(self) -> AnalysisReport:
        """Return a table of the classes, a table of the inequality of clean and of robust accuracy, and a figure."""
        classes = tuple((c.name, c.clean.n, percent(c.clean), percent(c.robust)) for c in self.classes)
        spreads = tuple(
            (name, "" if s.rsd is None else percent(s.rsd), f"{s.p_value:.3g}")
            for name, s in (("clean", self.clean), ("robust", self.robust))
        )
        worst, best, rsd = self.worst, self.best, self.robust.rsd
        class_spread = "undefined, as no sample is robust" if rsd is None else f"{percent(rsd)} %"
        summary = (
            f"Robust accuracy ranges from {percent(worst.robust)} % (class {worst.name}, n = {worst.robust.n}) to "
            f"{percent(best.robust)} % (class {best.name}, n = {best.robust.n}); relative standard deviation over "
            f"{len(self.classes)} classes: {class_spread}, p = {self.robust.p_value:.3g} under equal classes."
        )
        tables = (
            Table("Classes", ("class", "n", "clean %", "robust %"), classes),
            Table("Spread over classes", ("accuracy", "relative standard deviation %", "p if alike"), spreads),
        )
        names = [c.name for c in self.classes]
        bars = (
            interval_series("clean", names, [c.clean for c in self.classes]),
            interval_series("robust", names, [c.robust for c in self.classes]),
        )
        figure = Figure("Accuracy by class", "bars", "class", "accuracy (%)", bars)
        return AnalysisReport("fairness", "Fairness over classes", summary, tables, (figure,))

    def measures(self) -> tuple[Measure, ...]:
        """Return the relative standard deviation of the robust accuracy over classes (Croce et al. 2021, fig. 6)."""
        rsd = self.robust.rsd
        return () if rsd is None else (Measure.percent("RSD of robust accuracy over classes, %", rsd),)


def fairness(run: AnyRun, *, names: Sequence[str] = (), seed: int = 0) -> Fairness:
    """Return clean and robust accuracy of every class in the Run, and how unequal the classes are.

    Method: standard deviation of the class accuracies (divisor: number of classes) over their mean. Interval: basic
    bootstrap within classes. p-value: simulation with one common accuracy and the same numbers of samples per class.
    Interval and p-value are keyed by the seed. Cost: no forward passes. Reference: Croce et al. 2021, sec. 4.

    >>> classes = fairness("tests/results/golden_run_v1").classes
    >>> sum(c.robust.n for c in classes), sum(c.robust.k for c in classes)
    (6, 2)
    """
    run = Run.open(run)
    table = run.rows()
    clean = table.filter(is_evidence(table, Evidence.CLEAN))
    ids, labels = row_queries.ids_of(clean), np.asarray(clean["label"], dtype=np.int64)
    if not len(ids):
        raise RunError(
            expected="a Run with samples", got=f"no samples in {run.path}", remedy="Continue the Run with --resume."
        )
    if names and len(names) <= labels.max():
        raise InputError(
            expected=f"a name for each of the classes 0..{labels.max()}",
            got=f"{len(names)} names",
            remedy="Pass one name per class, or omit `names`.",
        )
    classes = np.unique(labels)
    n = np.array([(labels == c).sum() for c in classes])
    parts = {"clean": np.isin(ids, row_queries.survivors(run.numbers(), [])), "robust": np.isin(ids, run.survivors())}
    right = {part: np.array([(good & (labels == c)).sum() for c in classes]) for part, good in parts.items()}
    found = tuple(
        ClassAccuracy(int(c), names[c] if names else str(c), *(Proportion(int(k), int(m)) for k in pair))
        for c, m, *pair in zip(classes, n, right["clean"], right["robust"], strict=True)
    )
    spreads = (class_spread(right[part], n, seed, f"fairness, {part}") for part in parts)
    return Fairness(run.identity.model.name or "", found, *spreads)


def relative_deviation(accuracy: Floats) -> float:
    """Return the standard deviation of the class accuracies (divisor: number of classes) divided by their mean.

    >>> relative_deviation(np.array([0.25, 0.75]))
    0.5
    """
    return float(accuracy.std() / accuracy.mean())


def class_spread(right: Ints, n: Ints, seed: int, purpose: str) -> ClassSpread:
    """Return how unequal the class accuracies are; class i has `right[i]` correct samples out of `n[i]`."""
    if not right.sum():
        return ClassSpread(None, 1.0)
    value, common = relative_deviation(right / n), np.full(len(n), right.sum() / n.sum())
    redrawn = [relative_deviation(a) for a in _redrawn(right / n, n, seed, purpose) if a.any()]
    alike = np.array(
        [relative_deviation(a) if a.any() else 0.0 for a in _redrawn(common, n, seed, f"{purpose}, alike")]
    )
    p_value = (1 + int((alike >= value - 1e-12).sum())) / (1 + DRAWS)
    return ClassSpread(basic_bootstrap(value, np.array(redrawn), int(n.sum()), least=0.0), p_value)


def _redrawn(accuracy: Floats, n: Ints, seed: int, purpose: str) -> "list[Floats]":
    """Return simulated class accuracies per draw: class i has n[i] samples, correct with probability accuracy[i]."""
    first = np.concatenate([[0], np.cumsum(n)])[:-1]
    probability = np.repeat(accuracy, n)
    return [
        np.add.reduceat((u < probability).astype(np.float64), first) / n for u in uniforms(int(n.sum()), seed, purpose)
    ]
