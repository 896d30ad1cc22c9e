"""Whether the probabilities a model gives mean what they say."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brinell.analysis.calibration_error import (
    BINS,
    bin_index,
    chance,
    confidence_at,
    error_interval,
    least_error,
    logit_gaps,
    nll_temperature,
)
from brinell.analysis.intervals import Bools, Floats, percent, split_halves
from brinell.analysis.predictions import (
    AnyRun,
    Predictions,
    open_run,
    predict,
    read_chunks,
    require_misclassification,
    require_same_model,
    with_adversarials,
)
from brinell.core.dataset import Chunk
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Interval, Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table


@dataclass(frozen=True)
class Bin:
    """The samples whose confidence lies in (low, high]: how many, their mean confidence, and how many are right."""

    low: float
    high: float
    confidence: float
    right: Proportion


@dataclass(frozen=True)
class Reliability:
    """How confidence and accuracy agree on one kind of inputs.

    `chance` is what a perfectly calibrated model with these very confidences stays below in 95 of 100 samples of this
    size: an error below it is none. `scaled` is the least error over temperatures on these same samples, at
    `temperature`; `held_out` the error of each half at the other half's temperature of least cross-entropy, which over
    all samples is `nll_temperature`.
    """

    inputs: str
    accuracy: Proportion
    confidence: float
    ece: Interval
    chance: float
    temperature: float
    scaled: float
    nll_temperature: float
    held_out: Interval
    bins: tuple[Bin, ...]
    scaled_bins: tuple[Bin, ...]

    @property
    def leaning(self) -> str:
        """Whether the model claims more than it holds, or less; "calibrated" where chance explains the error."""
        if self.ece.value <= self.chance:
            return "calibrated"
        return "overconfident" if self.confidence > self.accuracy.value else "underconfident"

    @property
    def told(self) -> str:
        """The same in words."""
        return "shows no miscalibration beyond chance" if self.leaning == "calibrated" else f"is {self.leaning}"


@dataclass(frozen=True)
class Calibration:
    """A model's calibration on clean and, from a Run, on adversarial inputs."""

    model: str
    clean: Reliability
    adversarial: Reliability | None = None

    @property
    def sides(self) -> tuple[Reliability, ...]:
        """Clean, then adversarial where it was looked at."""
        return (self.clean,) if self.adversarial is None else (self.clean, self.adversarial)

    def findings(self) -> AnalysisReport:
        """For a page: the numbers of each kind of inputs, and reliability diagrams."""
        sides = self.sides
        rows: list[tuple[Cell, ...]] = [
            ("samples", *(s.ece.n for s in sides)),
            ("accuracy, %", *(percent(s.accuracy) for s in sides)),
            ("mean confidence, %", *(f"{100 * s.confidence:.1f}" for s in sides)),
            ("calibration error (ECE), %", *(percent(s.ece) for s in sides)),
            ("chance alone stays below, %", *(f"{100 * s.chance:.1f}" for s in sides)),
            ("least error over temperatures, %", *(f"{100 * s.scaled:.1f}" for s in sides)),
            ("  at temperature", *(f"{s.temperature:.3g}" for s in sides)),
            ("error at a held-out temperature, %", *(percent(s.held_out) for s in sides)),
            ("temperature of least cross-entropy", *(f"{s.nll_temperature:.3g}" for s in sides)),
        ]
        told = [
            f"On {s.inputs} inputs the model {s.told}: calibration error {percent(s.ece)} %, "
            f"{100 * s.scaled:.1f} % at temperature {s.temperature:.3g} (n = {s.ece.n})."
            for s in sides
        ]
        table = Table("Calibration", ("", *(s.inputs for s in sides)), tuple(rows))
        return AnalysisReport("calibration", "Calibration", " ".join(told), (table,), tuple(_diagram(s) for s in sides))


def _diagram(side: Reliability) -> Figure:
    series = (
        _points("as it is", side.bins),
        _points(f"at temperature {side.temperature:.3g}", side.scaled_bins),
    )
    return Figure(f"Reliability, {side.inputs} inputs", "line", "confidence", "accuracy", series, diagonal=True)


def _points(name: str, bins: Iterable[Bin]) -> Series:
    full = [b for b in bins if b.right.n]
    return Series(
        name,
        tuple(b.confidence for b in full),
        tuple(b.right.value for b in full),
        tuple(b.right.low for b in full),
        tuple(b.right.high for b in full),
    )


def calibration(
    classifier: Any,
    problem: Any,
    run: AnyRun | None = None,
    *,
    bins: int = BINS,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Calibration:
    """How far the largest probability is from the chance of being right, before and after temperature scaling.

    Method: expected calibration error over bins of equal width; the temperature of least error on a grid, on the same
    samples, as the paper does, and that of least cross-entropy, exactly (the cross-entropy is convex in 1/T), measured
    on the half it was not chosen on. With a Run of the model, the same for its adversarial inputs; samples it did not
    break stay clean there. Intervals: basic bootstrap, keyed by the seed. Cost: one forward per sample and kind.
    Reference: Guo et al. 2017; Croce et al. 2021, sec. 4.

    >>> import brinell
    >>> found = calibration("demo", brinell.data.load("demo", 200))
    >>> found.clean.ece.n, 0 <= found.clean.scaled <= found.clean.ece.value <= 1
    (200, True)
    """
    if bins < 1:
        raise InputError(expected="at least 1 bin", got=f"{bins}", remedy=f"Leave it out for {BINS}.")
    model, data = coerce.as_classifier(classifier, device), coerce.as_problem(problem)
    stored = None if run is None else open_run(run)
    if stored is not None:
        require_same_model(stored, model)
        require_misclassification(stored)

    def side(name: str, chunks: Iterable[Chunk]) -> Reliability:
        return reliability(predict(model, chunks), name, bins, seed)

    clean = side("clean", read_chunks(data))
    return Calibration(
        model.name, clean, None if stored is None else side("adversarial", with_adversarials(stored, data))
    )


def reliability(said: Predictions, name: str = "clean", bins: int = BINS, seed: int = 0) -> Reliability:
    """The numbers of one kind of inputs."""
    if len(said) < 2:
        raise InputError(
            expected="at least 2 samples", got=f"{len(said)}", remedy="An error is a matter of many: give hundreds."
        )
    right, gaps = said.right, logit_gaps(said.logits)
    confidence = confidence_at(gaps, 1.0)
    temperature, scaled = least_error(gaps, right, bins)
    return Reliability(
        inputs=name,
        accuracy=Proportion(int(right.sum()), len(right)),
        confidence=float(confidence.mean()),
        ece=error_interval(confidence, right, bins, seed),
        chance=chance(confidence, bins, seed),
        temperature=temperature,
        scaled=scaled,
        nll_temperature=nll_temperature(said.logits, said.y),
        held_out=_held_out(said, bins, seed),
        bins=_bins(confidence, right, bins),
        scaled_bins=_bins(confidence_at(gaps, temperature), right, bins),
    )


def _held_out(said: Predictions, bins: int, seed: int) -> Interval:
    """The error of every half at the other half's temperature; both halves' confidences are pooled before binning."""
    first, right = split_halves(said.ids, seed, "calibration"), said.right
    gaps, confidence = logit_gaps(said.logits), np.zeros(len(said))
    for here in (first, ~first):
        there = torch.from_numpy(~here)
        confidence[here] = confidence_at(
            gaps[torch.from_numpy(here)], nll_temperature(said.logits[there], said.y[there])
        )
    return error_interval(confidence, right, bins, seed)


def _bins(confidence: Floats, right: Bools, bins: int) -> tuple[Bin, ...]:
    where, edges = bin_index(confidence, bins), np.linspace(0, 1, bins + 1).tolist()
    found = []
    for k in range(bins):
        mine = where == k
        mean = float(confidence[mine].mean()) if mine.any() else float("nan")
        found.append(Bin(edges[k], edges[k + 1], mean, Proportion(int(right[mine].sum()), int(mine.sum()))))
    return tuple(found)
