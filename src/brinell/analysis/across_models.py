"""Apply one analysis to many models, and show the results in one table and in figures with one point per model."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from brinell.analysis.intervals import Floats
from brinell.analysis.predictions import AnyRun
from brinell.core.model import Classifier
from brinell.errors import BrinellError, ModelError, first_line
from brinell.evaluation import coerce
from brinell.models import zoo
from brinell.models.by_name import expand
from brinell.results import Interval, Proportion, Run
from brinell.results.analyses import AnalysisReport, Cell, Figure, Measure, Series, Table
from brinell.results.format.files import file_name
from brinell.results.run import open_runs
from brinell.results.summary import setting

T = TypeVar("T")
ROBUST, PUBLISHED = "robust accuracy, %", "published robust accuracy, %"
# The largest number of models whose orders are all tried for a p-value.
MOST_EXACT = 9


@dataclass(frozen=True)
class ModelResult(Generic[T]):
    """The result of an analysis of one model, or its error; `robust` is the robust accuracy of the model, if known.

    The name of `robust` tells its threat, plan and data, and whether it is a published value.
    """

    model: str
    result: T | None = None
    error: BrinellError | None = None
    run: Run | None = None
    robust: Measure | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The numbers of the result that tables and figures over many models show; () if there is no result."""
        return () if self.result is None else self.result.measures()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ModelResults(Generic[T]):
    """The results of one analysis of many models, in the given order; a failed model has an error and no result.

    `notes` has a sentence for every Run that was left out.
    """

    models: tuple[ModelResult[T], ...]
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[ModelResult[T], ...]:
        """The entries of `models` that have a result."""
        return tuple(m for m in self.models if m.result is not None)

    @property
    def failed(self) -> tuple[ModelResult[T], ...]:
        """The entries of `models` that have an error."""
        return tuple(m for m in self.models if m.error is not None)

    def findings(self) -> AnalysisReport:
        """Return a table with one row per model, and for each measured number a figure with one point per model.

        Robust accuracies for different threats, plans or data have a column each. Figures show the most frequent of
        them, and the summary names the models that they leave out.
        """
        robust = Counter(m.robust.name for m in self.measured if m.robust is not None)
        axis = max(robust, key=lambda name: (robust[name], not name.startswith(PUBLISHED)), default=ROBUST)
        names = list(dict.fromkeys(n.name for m in self.measured for n in m.measures))
        rows: list[tuple[Cell, ...]] = []
        for m in self.measured:
            found = {n.name: str(n) if n.x is None else f"{n} at {n.x[1]:.3g}" for n in m.measures}
            own = ("" if m.robust is None or m.robust.name != name else str(m.robust) for name in robust)
            rows.append((m.model, *own, *(found.get(name, "") for name in names)))
        kind = type(self.measured[0].result).__name__.lower()
        title = f"{kind} of {len(rows)} models"
        figures = [_figure(name, self.measured, axis) for name in names]
        sentences = [_sentence(figure) for figure in figures if len(figure.series) > 2]
        others = [m.model for m in self.measured if m.robust is not None and m.robust.name != axis]
        if others and any(figure.x == axis for figure in figures):
            reason = "since their robust accuracy has another threat, plan or data or is published"
            sentences.append(f"The figures over the {axis} leave out {', '.join(others)}, {reason}.")
        sentences += self.notes
        sentences += [f"{m.model} failed: {m.error}" for m in self.failed]
        return AnalysisReport(
            f"{kind}-models", title, " ".join(sentences), (Table(title, ("model", *robust, *names), tuple(rows)),),
            tuple(f for f in figures if f.series),
        )  # fmt: skip


def _figure(name: str, models: Sequence[ModelResult[Any]], robust: str) -> Figure:
    series, axis = [], robust
    for m in models:
        for n in m.measures:
            x = n.x or (None if m.robust is None or m.robust.name != robust else (robust, m.robust.value))
            if n.name == name and x is not None:
                axis = x[0]
                bounds = () if n.low is None or n.high is None else ((n.low,), (n.high,))
                series.append(Series(m.model, (x[1],), (n.value,), *bounds))
    return Figure("", "points", axis, name, tuple(series))


def _sentence(figure: Figure) -> str:
    x, y = np.array([(s.x[0], s.y[0]) for s in figure.series], float).T
    rank = rank_correlation(x, y)
    chance = rank_p_value(x, y)
    return (
        f"{figure.y}: rank correlation with {figure.x.partition(',')[0]} {rank:+.2f} over {len(x)} models "
        f"(p = {chance:.2g})."
    )


def rank_correlation(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation of x and y, with mean ranks for ties; NaN if all x or all y are equal.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    1.0
    """
    a, b = _centred_ranks(x), _centred_ranks(y)
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm else float("nan")


def _centred_ranks(v: Floats) -> Floats:
    """Return twice the rank of every number, minus their mean; equal numbers have their mean rank."""
    ranks = (v[:, None] > v).sum(1) + (v[:, None] >= v).sum(1)
    return np.asarray(ranks - ranks.mean(), float)


def rank_p_value(x: Floats, y: Floats) -> float:
    """Return the two-sided p-value of Spearman's rank correlation; NaN if all x or all y are equal.

    Up to 9 points it is exact: the share of all orders of y whose correlation is at least as far from 0. Beyond that
    the correlation is taken to be normal with variance 1 / (n − 1). With 3 points the smallest possible value is 1/3.

    >>> round(rank_p_value(np.arange(4.0), np.arange(4.0)), 4)
    0.0833
    """
    rank, n = rank_correlation(x, y), len(x)
    if math.isnan(rank) or n > MOST_EXACT:
        return rank if math.isnan(rank) else math.erfc(abs(rank) * math.sqrt((n - 1) / 2))
    a, b = _centred_ranks(x), _centred_ranks(y)
    sums = np.abs(b[np.array(list(permutations(range(n))))] @ a)
    return float((sums >= abs(a @ b) - 1e-9).mean())


def across_models(
    models: Iterable[Any], measure: Callable[[Classifier, Run | None], T],
    *, runs: Iterable[AnyRun] = (), device: torch.device | str | None = None,
) -> ModelResults[T]:  # fmt: skip
    """Call `measure` for each model in turn, and return all results; an error of one model does not stop the loop.

    `models` holds classifiers, names of models, patterns such as "zoo:cifar10/Linf/*", text files with one name per
    line, folders of Runs, or texts NAME=MODEL. `measure(classifier, run)` gets the first of `runs` (Runs or folders of
    Runs) that belongs to the classifier, or None. Only Runs with the same threat, plan and data are used, those that
    most models have; `notes` of the result names the others. The figures use the robust accuracy of the result if it
    has one, else of the Run, else the published value of a zoo model, which is marked as published. If every model
    fails, an error with all messages is raised.

    >>> import brinell
    >>> data = brinell.data.load("demo", 40)
    >>> found = across_models(["demo", "a=demo"], lambda model, run: brinell.analysis.calibration(model, data))
    >>> [m.model for m in found.measured]
    ['demo', 'a']
    """
    given = open_runs(*runs)
    common = _common_setting(given)
    stored = {r.identity.model.fingerprint: r for r in reversed(given) if _setting_key(r) == common}
    notes: dict[str, None] = {}

    def one(name: str, source: Any) -> ModelResult[T]:
        model = coerce.as_classifier(source, device)
        run = stored.get(model.fingerprint)
        for other in given:
            if other.identity.model.fingerprint == model.fingerprint and _setting_key(other) != common:
                used = next(r for r in given if _setting_key(r) == common)
                notes[_left_out(other, used)] = None
        result = measure(model, run)
        return ModelResult(name or model.name or "model", result, run=run, robust=_robust(result, run, model.name))

    found = _collected((name or str(source), partial(one, name, source)) for name, source in named(models))
    return replace(found, notes=tuple(notes))


def _setting_key(run: Run) -> str:
    """Return a text that is equal for Runs with the same threat, criterion, plan and data."""
    i = run.identity
    threat = {name: value for name, value in i.threat.raw.items() if name != "eps_text"}
    stages = [(s.name, s.hash, s.share) for s in i.plan.stages]
    data = i.data.fingerprint or [i.data.name, i.data.n]
    return json.dumps([threat, i.criterion, i.plan.name, i.plan.draws, stages, data], sort_keys=True, default=str)


def _common_setting(runs: Sequence[Run]) -> str | None:
    """Return the setting that Runs of most models have, the first of several; None without Runs."""
    models = dict.fromkeys((_setting_key(run), run.identity.model.fingerprint) for run in runs)
    counts = Counter(key for key, _ in models)
    return max(counts, key=lambda key: counts[key], default=None)


def _left_out(run: Run, used: Run) -> str:
    theirs, ours = setting(run), setting(used)
    other = "with other attacks, data or criterion" if theirs == ours else f"({theirs})"
    return f"The Run {run.path} {other} is left out: the table uses Runs with {ours}."


def across_runs(runs: Iterable[AnyRun], measure: Callable[[Run], T]) -> ModelResults[T]:
    """Call `measure(run)` for each Run, and return all results by model; `runs` are Runs or folders of Runs.

    Runs with different threats, plans or data stay apart: each of these has a column of robust accuracies.

    >>> from brinell.analysis.fairness import fairness
    >>> print(across_runs(["tests/results/golden_run_v1"], fairness).measured[0].robust)
    33.33 [9.677, 70]
    """
    opened = open_runs(*runs)
    titles: dict[str, str] = {}
    for run in opened:
        if _setting_key(run) not in titles:
            titles[_setting_key(run)] = distinct(_title(setting(run)), titles.values())

    def one(run: Run) -> ModelResult[T]:
        result = measure(run)
        robust = Measure.percent(titles[_setting_key(run)], run.robust_accuracy)
        return ModelResult(run.identity.model.name or run.path.name, result, run=run, robust=robust)

    return _collected((str(run.path), partial(one, run)) for run in opened)


def _collected(calls: Iterable[tuple[str, Callable[[], ModelResult[T]]]]) -> ModelResults[T]:
    """Call the function of every (name, function) pair; if it raises an error, the result has this name and error."""
    results: list[ModelResult[T]] = []
    for name, call in calls:
        try:
            found = call()
        except Exception as error:  # a network of the user may raise anything
            found = ModelResult(name, error=_as_error(error))
        results.append(replace(found, model=distinct(found.model, [m.model for m in results])))
    found_all = ModelResults(tuple(results))
    if found_all.failed and not found_all.measured:
        raise _joined(found_all.failed)
    return found_all


def _joined(failed: Sequence[ModelResult[Any]]) -> BrinellError:
    """Return the error of all models if it is the same, else an error with the message of every model."""
    errors = [m.error for m in failed if m.error is not None]
    if len(set(map(str, errors))) == 1:
        return errors[0]
    kinds = {type(error) for error in errors}
    return (kinds.pop() if len(kinds) == 1 else ModelError)(
        expected="at least one model that can be measured",
        got=f"{len(errors)} models with errors",
        remedy=" ".join(f"({i}) {m.model}: {m.error}" for i, m in enumerate(failed, 1)),
    )


def _as_error(error: Exception) -> BrinellError:
    if isinstance(error, BrinellError):
        return error
    return ModelError(
        expected="a model that can be measured",
        got=f"{type(error).__name__}: {first_line(error)}",
        remedy="Measure this model alone to see where the error comes from.",
    )


def named(models: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, source) of every model, name "" if none is given; a text that names many models is expanded."""
    for given in models:
        if not isinstance(given, str):
            yield "", given
            continue
        label, equals, source = given.partition("=")
        if not equals or re.search(r"[/:]", label):  # no name, or a path with = in it
            label, source = "", given
        for spec in expand([source]):
            yield label, spec


def distinct(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or `name` with the first free number if it is in `taken`.

    >>> distinct("demo", ["demo", "demo (2)"])
    'demo (3)'
    """
    known, count, result = set(taken), 1, name
    while result in known:
        count += 1
        result = f"{name} ({count})"
    return result


def model_folder(out: Path | None, model: Classifier) -> Path | None:
    """Return a folder in `out` for the model's Runs, called after its name and fingerprint; None without `out`."""
    return None if out is None else out / f"{file_name(model.name)}-{model.fingerprint[:8]}"


def model_folders(out: Path | None) -> Callable[[Classifier], Path | None]:
    """Return `model_folder` in `out` as a function of the model; if a model comes again, its folder has a number."""
    counts: Counter[Path] = Counter()

    def folder(model: Classifier) -> Path | None:
        if (path := model_folder(out, model)) is None:
            return None
        counts[path] += 1
        return path if counts[path] == 1 else path.with_name(f"{path.name}-{counts[path]}")

    return folder


def _robust(result: Any, run: Run | None, name: str) -> Measure | None:
    p: Proportion | Interval | None = getattr(result, "robust_accuracy", None)
    if p is not None:
        return Measure.percent(_title(getattr(result, "setting", "")), p)
    if run is not None:
        return Measure.percent(_title(setting(run)), run.robust_accuracy)
    card = zoo.cards().get(name)
    published = None if card is None else card.best_known or card.robust_accuracy
    if card is None or published is None:
        return None
    radius = "" if card.eps is None else f", eps = {card.eps}"
    return Measure(f"{PUBLISHED} ({card.data}, {card.threat}{radius})", 100 * published)


def _title(text: str) -> str:
    return f"{ROBUST} ({text})" if text else ROBUST
