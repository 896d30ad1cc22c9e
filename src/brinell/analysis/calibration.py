"""Calibration: whether the predicted probabilities match the accuracy."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brinell.analysis.calibration_error import (
    BINS,
    bin_index,
    calibrated_quantile,
    confidence_at,
    error_interval,
    least_error,
    logit_gaps,
    nll_temperature,
)
from brinell.analysis.intervals import Bools, Floats, interval_series, percent, split_halves
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
    """The samples with a confidence in (low, high]: mean confidence, and how many are classified correctly."""

    low: float
    high: float
    confidence: float
    right: Proportion


@dataclass(frozen=True)
class Reliability:
    """How confidence and accuracy agree on one kind of inputs.

    `chance` is the 95 % quantile of the error of a perfectly calibrated model with these confidences: a smaller error
    is no evidence of miscalibration. `scaled` is the least error over temperatures on the same samples, at
    `temperature`. `held_out` is the error of each half at the temperature of least cross-entropy of the other half;
    `nll_temperature` is that temperature for all samples.
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
    def tendency(self) -> str:
        """ "overconfident" or "underconfident"; "calibrated" if chance explains the error."""
        if self.ece.value <= self.chance:
            return "calibrated"
        return "overconfident" if self.confidence > self.accuracy.value else "underconfident"

    @property
    def description(self) -> str:
        """The tendency as a verb phrase."""
        return "shows no miscalibration beyond chance" if self.tendency == "calibrated" else f"is {self.tendency}"


@dataclass(frozen=True)
class Calibration:
    """A model's calibration on clean and, from a Run, on adversarial inputs."""

    model: str
    clean: Reliability
    adversarial: Reliability | None = None

    @property
    def sides(self) -> tuple[Reliability, ...]:
        """Clean and, if measured, adversarial."""
        return (self.clean,) if self.adversarial is None else (self.clean, self.adversarial)

    def findings(self) -> AnalysisReport:
        """Return a table of the numbers for each kind of inputs, and reliability diagrams."""
        sides = self.sides
        rows: list[tuple[Cell, ...]] = [
            ("samples", *(s.ece.n for s in sides)),
            ("accuracy, %", *(percent(s.accuracy) for s in sides)),
            ("mean confidence, %", *(f"{100 * s.confidence:.1f}" for s in sides)),
            ("calibration error (ECE), %", *(percent(s.ece) for s in sides)),
            ("95 % quantile if calibrated, %", *(f"{100 * s.chance:.1f}" for s in sides)),
            ("least error over temperatures, %", *(f"{100 * s.scaled:.1f}" for s in sides)),
            ("  at temperature", *(f"{s.temperature:.3g}" for s in sides)),
            ("error at a held-out temperature, %", *(percent(s.held_out) for s in sides)),
            ("temperature of least cross-entropy", *(f"{s.nll_temperature:.3g}" for s in sides)),
        ]
        sentences = [
            f"On {s.inputs} inputs the model {s.description}: calibration error {percent(s.ece)} %, "
            f"{100 * s.scaled:.1f} % at temperature {s.temperature:.3g} (n = {s.ece.n})."
            for s in sides
        ]
        table = Table("Calibration", ("", *(s.inputs for s in sides)), tuple(rows))
        figures = tuple(_diagram(s) for s in sides)
        return AnalysisReport("calibration", "Calibration", " ".join(sentences), (table,), figures)


def _diagram(side: Reliability) -> Figure:
    series = (
        _points("unscaled", side.bins),
        _points(f"at temperature {side.temperature:.3g}", side.scaled_bins),
    )
    return Figure(f"Reliability, {side.inputs} inputs", "line", "confidence", "accuracy", series, diagonal=True)


def _points(name: str, bins: Iterable[Bin]) -> Series:
    full = [b for b in bins if b.right.n]
    return interval_series(name, [b.confidence for b in full], [b.right for b in full], scale=1)


def calibration(
    classifier: Any,
    problem: Any,
    run: AnyRun | None = None,
    *,
    bins: int = BINS,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Calibration:
    """Measure how far confidence is from accuracy, before and after temperature scaling.

    Method: expected calibration error over bins of equal width. Two temperatures are compared: that of least error on a
    grid, on the same samples, as in the paper; and that of least cross-entropy, exact since the cross-entropy is convex
    in 1/T, measured on the half it was not fitted on. With a Run of the model, the same for its adversarial inputs;
    samples it did not break stay clean. Intervals: basic bootstrap, keyed by the seed. Cost: one forward per sample and
    kind of inputs. Reference: Guo et al. 2017; Croce et al. 2021, sec. 4.

    >>> import brinell
    >>> clean = calibration("demo", brinell.data.load("demo", 200)).clean
    >>> clean.ece.n, 0 <= clean.scaled <= clean.ece.value <= 1
    (200, True)
    """
    if bins < 1:
        raise InputError(expected="at least 1 bin", got=f"{bins}", remedy=f"Omit `bins` for the default, {BINS}.")
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


def reliability(predictions: Predictions, name: str = "clean", bins: int = BINS, seed: int = 0) -> Reliability:
    """Return the numbers for one kind of inputs."""
    if len(predictions) < 2:
        raise InputError(expected="at least 2 samples", got=f"{len(predictions)}", remedy="Use hundreds of samples.")
    right, gaps = predictions.right, logit_gaps(predictions.logits)
    confidence = confidence_at(gaps, 1.0)
    temperature, scaled = least_error(gaps, right, bins)
    return Reliability(
        inputs=name,
        accuracy=Proportion(int(right.sum()), len(right)),
        confidence=float(confidence.mean()),
        ece=error_interval(confidence, right, bins, seed),
        chance=calibrated_quantile(confidence, bins, seed),
        temperature=temperature,
        scaled=scaled,
        nll_temperature=nll_temperature(predictions.logits, predictions.y),
        held_out=_held_out(predictions, bins, seed),
        bins=_bins(confidence, right, bins),
        scaled_bins=_bins(confidence_at(gaps, temperature), right, bins),
    )


def _held_out(predictions: Predictions, bins: int, seed: int) -> Interval:
    """Return the error with each half scaled by the other half's temperature; both are pooled before binning."""
    first, right = split_halves(predictions.ids, seed, "calibration"), predictions.right
    gaps, confidence = logit_gaps(predictions.logits), np.zeros(len(predictions))
    for here in (first, ~first):
        there = torch.from_numpy(~here)
        confidence[here] = confidence_at(
            gaps[torch.from_numpy(here)], nll_temperature(predictions.logits[there], predictions.y[there])
        )
    return error_interval(confidence, right, bins, seed)


def _bins(confidence: Floats, right: Bools, bins: int) -> tuple[Bin, ...]:
    where, edges = bin_index(confidence, bins), np.linspace(0, 1, bins + 1).tolist()
    result = []
    for k in range(bins):
        inside = where == k
        mean = float(confidence[inside].mean()) if inside.any() else float("nan")
        result.append(Bin(edges[k], edges[k + 1], mean, Proportion(int(right[inside].sum()), int(inside.sum()))))
    return tuple(result)
