"""Distribution shift: accuracy on data sets other than the model's own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brinell.analysis.intervals import (
    Bools,
    Floats,
    basic_bootstrap,
    independent_difference,
    interval_series,
    percent,
    resamples,
)
from brinell.analysis.predictions import Predictions, predict, read_chunks
from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.evaluate import evaluate
from brinell.results import Difference, Interval, Proportion, paired_difference
from brinell.results.analyses import AnalysisReport, Cell, Figure, Measure, Table
from brinell.results.format.files import file_name

# The name of the model's own data in tables, figures and folders.
OWN = "own data"


@dataclass(frozen=True)
class ShiftedData:
    """The accuracy on one shifted data set, and `gap`: this accuracy minus the accuracy on the model's own data.

    `paired` says whether the two data sets hold the same samples (equal ids and labels), which narrows the interval of
    `gap`. `effective` is the effective robustness: the accuracy minus the accuracy that the baselines predict. `robust`
    is the robust accuracy on this data set, if a threat was given.
    """

    name: str
    accuracy: Proportion
    gap: Difference
    paired: bool
    effective: Interval | None = None
    robust: Proportion | None = None


@dataclass(frozen=True)
class Shift:
    """The accuracy on the model's own data (`home`) and on shifted data sets (`sets`).

    `robust_accuracy` is the robust accuracy on the model's own data within `threat`, against `plan`, if a threat was
    given.
    """

    model: str
    home: Proportion
    sets: tuple[ShiftedData, ...]
    robust_accuracy: Proportion | None = None
    threat: str | None = None
    plan: str | None = None

    @property
    def setting(self) -> str:
        """Threat, plan and data of the robust accuracy."""
        return f"{self.threat}, plan {self.plan}, own data, n = {self.home.n:,}"

    @property
    def mean(self) -> float:
        """The mean accuracy over the shifted data sets, with equal weights."""
        return sum(s.accuracy.value for s in self.sets) / len(self.sets)

    @property
    def worst(self) -> ShiftedData:
        """The shifted data set with the lowest accuracy."""
        return min(self.sets, key=lambda s: s.accuracy.value)

    def findings(self) -> AnalysisReport:
        """Return a table with one row per data set, and a figure of the accuracies."""
        columns: tuple[str, ...] = ("data", "n", "accuracy %", "gap, points", "same samples")
        table: list[tuple[Cell, ...]] = [(OWN, self.home.n, percent(self.home), "", "")]
        for s in self.sets:
            table.append((s.name, s.accuracy.n, percent(s.accuracy), percent(s.gap), "yes" if s.paired else "no"))
        above = [s.effective for s in self.sets]
        if any(above):
            columns = (*columns, "effective robustness, points")
            cells = ["", *("" if e is None else percent(e) for e in above)]
            table = [(*row, cell) for row, cell in zip(table, cells, strict=True)]
        robust = [p for p in (self.robust_accuracy, *(s.robust for s in self.sets)) if p is not None]
        if robust:
            columns = (*columns, f"robust accuracy %, {self.threat}")
            table = [(*row, percent(p)) for row, p in zip(table, robust, strict=True)]
        worst = self.worst
        many = f"{100 * self.mean:.1f} % on average over {len(self.sets)} others; worst on " if self.sets[1:] else "on "
        summary = (
            f"Accuracy is {percent(self.home)} % on the model's own data (n = {self.home.n}) and {many}{worst.name}: "
            f"{percent(worst.accuracy)} % (n = {worst.accuracy.n}), {percent(worst.gap)} points."
        )
        names, shares = (OWN, *(s.name for s in self.sets)), (self.home, *(s.accuracy for s in self.sets))
        bars = [interval_series("accuracy", names, shares)]
        if robust:
            summary += f" Robust accuracy: {percent(robust[0])} % and {percent(worst.robust or robust[0])} %."
            bars.append(interval_series("robust accuracy", names, robust))
        figure = Figure("Accuracy under distribution shift", "bars", "data", "accuracy (%)", tuple(bars))
        return AnalysisReport(
            "shift", "Distribution shift", summary, (Table("Data sets", columns, tuple(table)),), (figure,)
        )

    def measures(self) -> tuple[Measure, ...]:
        """Return clean and, if measured, robust accuracy on each data set (Croce et al. 2021, figs. 3 and 10)."""
        clean = (Measure.percent(f"accuracy on {s.name}, %", s.accuracy) for s in self.sets)
        robust = (
            Measure.percent(f"robust accuracy on {s.name}, %", s.robust) for s in self.sets if s.robust is not None
        )
        return (*clean, *robust)


def shift(
    classifier: ModelLike, problem: DataLike, sets: Mapping[str, DataLike],
    *, baselines: Sequence[Any] = (), threat: Threat | None = None, plan: PlanLike = "autoattack",
    out: str | os.PathLike[str] | None = None, resume: bool = False, progress: bool | None = None, seed: int = 0,
    device: torch.device | str | None = None,
) -> Shift:  # fmt: skip
    """Measure the accuracy on other data sets, and compare it with the accuracy on the model's own data.

    Method: `sets` maps names to problems: corruptions, new samples, other sources. The gap is the accuracy on the set
    minus the accuracy on `problem`. Its interval is Newcombe's: paired if set and `problem` hold the same ids with the
    same labels, else for independent samples. Two or more ordinary models as `baselines` also give the effective
    robustness: the accuracy on the set minus the accuracy predicted from this model's accuracy on `problem`. The
    prediction is a straight line fitted to the log-odds of the baselines' accuracies. Interval of the effective
    robustness: bootstrap over samples, keyed by the seed, with fixed baselines. With a `threat`, the plan also attacks
    the model on every data set, as `brinell.evaluate` does; the Runs are stored in the folder `out`, and `resume`
    continues them. Cost: one forward per sample and model, plus the attacks. Reference: Taori et al. 2020; Croce et al.
    2021, sec. 4 and appendix.

    >>> import brinell
    >>> home = brinell.data.load("demo", 100)
    >>> dark = brinell.Problem(home.x / 4, home.y, home.ids)
    >>> result = shift("demo", home, {"dark": dark}).sets[0]
    >>> result.paired, result.gap.value < 0
    (True, True)
    """
    if not sets:
        raise InputError(expected="at least one shifted data set", got="none", remedy="Pass `sets` as {name: problem}.")
    if len(baselines) == 1:
        raise InputError(
            expected="two baselines or more, or none",
            got="one baseline",
            remedy="Add a baseline: a line needs two points.",
        )
    coerce.require_folder(resume, out)
    chosen = coerce.as_plan(plan)
    models = [coerce.as_classifier(c, device) for c in (classifier, *baselines)]
    home = _predict_all(models, problem)
    results = tuple(_shifted_data(name, home, _predict_all(models, other), seed) for name, other in sets.items())
    if threat is None:
        return Shift(models[0].name, home[0].accuracy, results)

    def robust(name: str, data: Any) -> Proportion:
        folder = None if out is None else Path(out) / file_name(name)
        run = evaluate(models[0], data, threat, chosen, out=folder, resume=resume, seed=seed, progress=progress)
        return run.robust_accuracy

    own = robust(OWN, problem)
    results = tuple(replace(r, robust=robust(r.name, sets[r.name])) for r in results)
    return Shift(models[0].name, home[0].accuracy, results, own, str(threat), chosen.name)


def _predict_all(models: Sequence[Classifier], problem: Any) -> list[Predictions]:
    data = coerce.as_problem(problem)
    return [predict(model, read_chunks(data)) for model in models]


def _shifted_data(name: str, home: Sequence[Predictions], there: Sequence[Predictions], seed: int) -> ShiftedData:
    here, away = np.argsort(home[0].ids), np.argsort(there[0].ids)
    # One row per model, the analysed model first, columns in the order of the ids.
    near, far = np.stack([a.right[here] for a in home]), np.stack([a.right[away] for a in there])
    paired = np.array_equal(home[0].ids[here], there[0].ids[away]) and torch.equal(home[0].y[here], there[0].y[away])
    above = effective(near, far, paired, name, seed) if len(home) > 1 else None
    accuracy = there[0].accuracy
    if not paired:
        return ShiftedData(name, accuracy, independent_difference(accuracy, home[0].accuracy), False, above)
    a, b = far[0], near[0]
    counts = (int((x & y).sum()) for x, y in ((a, b), (a, ~b), (~a, b), (~a, ~b)))
    return ShiftedData(name, accuracy, paired_difference(*counts), True, above)


def effective(near: Bools, far: Bools, paired: bool, name: str, seed: int) -> Interval:
    """Return the effective robustness of the first model; the other models are the baselines.

    `near` and `far` are masks (models, samples) of correct predictions on own and on shifted data.
    """
    if len(np.unique(near[1:].sum(1))) < 2:
        raise InputError(
            expected="baselines with different accuracies on the model's own data",
            got="equal accuracies",
            remedy="Pass baselines from weak to strong: a line needs two different points.",
        )
    n, m = near.shape[1], far.shape[1]
    places = resamples(n, seed, f"shift, {name}, home")
    others = resamples(m, seed, f"shift, {name}, there")
    drawn = (
        beyond(near[:, i].mean(1), far[:, i if paired else j].mean(1), n, m)
        for i, j in zip(places, others, strict=True)
    )
    return basic_bootstrap(beyond(near.mean(1), far.mean(1), n, m), np.array(list(drawn)), m, -1.0, 1.0)


def beyond(home: Floats, there: Floats, n: int, m: int) -> float:
    """Return the first model's accuracy on shifted data minus the value that a line fitted to the others predicts.

    `home` and `there` hold one accuracy per model: on n samples of the model's own data and on m shifted samples.
    Accuracies 0 and 1 are moved by half a sample so that their log-odds are finite.

    >>> home, there = np.array([0.8, 0.5, 0.9]), np.array([0.7, 0.5, 0.9])
    >>> round(beyond(home, there, 100, 100), 6)  # the baselines lie on the diagonal
    -0.1
    """
    x, y = _log_odds(home, n), _log_odds(there, m)
    centre, middle = x[1:].mean(), y[1:].mean()
    spread = float(((x[1:] - centre) ** 2).sum())
    # In a draw in which the baselines are equal, use a line of slope 1 through their mean.
    slope = float(((x[1:] - centre) * (y[1:] - middle)).sum()) / spread if spread else 1.0
    return float(there[0] - 1 / (1 + np.exp(-(middle + slope * (x[0] - centre)))))


def _log_odds(accuracy: Floats, n: int) -> Floats:
    p = np.clip(accuracy, 0.5 / n, 1 - 0.5 / n)
    return np.asarray(np.log(p / (1 - p)))
