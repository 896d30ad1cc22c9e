"""Transferability: whether one model's stored adversarials fool another model; it costs forward passes only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from brinell.analysis.intervals import Bools, percent
from brinell.analysis.predictions import AnyRun, open_run_of, predict, read_chunks, with_adversarials
from brinell.arguments import DataLike, ModelLike
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Proportion, row_queries
from brinell.results.analyses import AnalysisReport, Figure, Series, Table
from brinell.results.repeats import RepeatedAccuracy, spread


@dataclass(frozen=True)
class TransferCell:
    """The result of one model's adversarials (the source) on another model (the target).

    `rate`: the share of the source's adversarials that fool the target, over samples both models classify correctly.
    `accuracy`: the target's accuracy on all samples if the source's adversarials replace the inputs that they belong
    to (the measure of Croce et al. 2021). `repeats`: mean and deviation of `accuracy` over several passes, for
    randomised targets.
    """

    source: str
    target: str
    rate: Proportion
    accuracy: Proportion
    repeats: RepeatedAccuracy | None = None


@dataclass(frozen=True)
class Transferability:
    """A matrix of results: one row per model that was attacked (`sources`), one column per tested model (`targets`)."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    n: int
    cells: tuple[TransferCell, ...]

    def __getitem__(self, pair: tuple[str, str]) -> TransferCell:
        for cell in self.cells:
            if (cell.source, cell.target) == pair:
                return cell
        raise InputError(
            expected=f"a source among {', '.join(self.sources)} and a target among {', '.join(self.targets)}",
            got=repr(pair),
            remedy="Write result[source, target] with these names.",
        )

    def findings(self) -> AnalysisReport:
        """Return the matrices of transfer rates and of target accuracies as tables and figures."""

        def matrix(part: str) -> tuple[tuple[str, ...], ...]:
            return tuple((s, *(_cell(getattr(self[s, t], part)) for t in self.targets)) for s in self.sources)

        columns = ("source", *self.targets)
        tables = [
            Table("Adversarials that fool the target, % (both correct on clean inputs)", columns, matrix("rate")),
            Table("Accuracy of the target on the source's inputs, %", columns, matrix("accuracy")),
        ]
        repeats = [c.repeats for c in self.cells if c.repeats is not None]
        if repeats:
            rows = tuple((s, *(_repeats(self[s, t].repeats) for t in self.targets)) for s in self.sources)
            tables.append(
                Table(f"Accuracy of the target, mean (deviation) over {repeats[0].passes} passes, %", columns, rows)
            )
        # A rate without adversarials cannot be drawn; an accuracy always can.
        rates = [self._figure("Transfer of adversarials (%)", "rate")] if all(c.rate.n for c in self.cells) else []
        figures = (*rates, self._figure("Accuracy on the other's inputs (%)", "accuracy"))
        return AnalysisReport("transfer", "Transferability", self._summary(), tuple(tables), figures)

    def _figure(self, title: str, part: str) -> Figure:
        rows = (
            Series(s, self.targets, tuple(100 * getattr(self[s, t], part).value for t in self.targets))
            for s in self.sources
        )
        return Figure(title, "matrix", "target", "source", tuple(rows))

    def _summary(self) -> str:
        others = [c for c in self.cells if c.source != c.target and c.rate.n]
        if not others:
            return f"No Run holds adversarials to show to another model (n = {self.n})."
        most, least = (pick(others, key=lambda c: c.rate.value) for pick in (max, min))
        texts = [f"{percent(c.rate)} % (n = {c.rate.n}) from {c.source} to {c.target}" for c in (most, least)]
        return f"Adversarials transfer best, {texts[0]}, and worst, {texts[1]}."


def _cell(p: Proportion) -> str:
    return f"{percent(p)}, n = {p.n}" if p.n else "n = 0"


def _repeats(a: RepeatedAccuracy | None) -> str:
    return "" if a is None else f"{100 * a.mean:.2f} ({100 * a.deviation:.2f}), n = {a.n}"


def transfer(
    runs: Mapping[str, AnyRun],
    classifiers: Mapping[str, ModelLike],
    problem: DataLike,
    *,
    passes: int = 1,
    device: torch.device | str | None = None,
) -> Transferability:
    """Measure how often the adversarials stored in Runs fool other models.

    Method: every stored adversarial (one per sample, the nearest) is shown to every classifier. `runs` and
    `classifiers` map names to Runs and to models. A classifier with the name of a Run must be the model of this Run, so
    its rate is 100 %; classifiers with other names are additional targets. All Runs must hold the problem's samples.
    `passes` above 1 repeats the measurement for randomised models and gives mean and deviation, as in Croce & Hein
    2020, Table 2 (JEM). Cost: one forward per sample and classifier, and `passes` forwards per sample, Run and
    classifier; no attack.
    Reference: Croce et al. 2021, appendix on transferability.

    >>> import brinell
    >>> data = brinell.data.load("demo", 24)
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> transfer({"demo": run}, {"demo": "demo"}, data)["demo", "demo"].rate.value
    1.0
    """
    if passes < 1:
        raise InputError(expected="at least 1 pass", got=f"{passes}", remedy="Omit `passes` for a single pass.")
    if not runs or not classifiers:
        raise InputError(
            expected="at least one Run and one classifier",
            got=f"{len(runs)} Runs and {len(classifiers)} classifiers",
            remedy="Pass {name: run} and {name: classifier}.",
        )
    models = {name: coerce.as_classifier(c, device) for name, c in classifiers.items()}
    data = coerce.as_problem(problem)
    stored = {name: open_run_of(run, models.get(name)) for name, run in runs.items()}
    clean = {name: predict(model, read_chunks(data)) for name, model in models.items()}
    cells = []
    for source, run in stored.items():
        # Samples with an adversarial in the Run that its model classifies correctly.
        shown = np.intersect1d(run.adversarials().ids, row_queries.survivors(run.numbers(), []))
        for target, model in models.items():
            after = [predict(model, with_adversarials(run, data)) for _ in range(passes)]
            cell = _cross(source, target, np.isin(after[0].ids, shown) & clean[target].right, after[0].right)
            fooled = np.stack([~p.right for p in after], 1)
            cells.append(replace(cell, repeats=spread(fooled)) if passes > 1 else cell)
    return Transferability(tuple(runs), tuple(models), len(data), tuple(cells))


def _cross(source: str, target: str, shown: Bools, right: Bools) -> TransferCell:
    return TransferCell(source, target, Proportion.of(~right[shown]), Proportion.of(right))
