"""Calibration: whether the predicted probabilities match the accuracy."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.analysis.intervals import LEVEL, Bools, Floats, bootstrap, interval_series, percent, split_halves, uniforms
from brinell.analysis.predictions import (
    AnyRun,
    CleanAndAdversarial,
    Predictions,
    open_run_of,
    predict,
    read_chunks,
    with_adversarials,
)
from brinell.arguments import DataLike, ModelLike
from brinell.core.dataset import Chunk
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Interval, Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Measure, Series

# Croce et al. 2021, appendix on calibration: 15 bins of equal width; temperatures t and 1/t for t = 0.001 … 1.
BINS = 15
GRID = np.arange(1, 1001) / 1000
# The range searched for the temperature of least cross-entropy.
COLDEST, HOTTEST = 1e-3, 1e3
# Newton's method stops after a step this small relative to its start: the next would be its square.
CLOSE = 1e-8


@dataclass(frozen=True)
class Bin:
    """A bin of samples with confidences in (low, high]: mean confidence (NaN if empty) and accuracy, `right`."""

    low: float
    high: float
    confidence: float
    right: Proportion


@dataclass(frozen=True)
class Reliability:
    """The agreement of confidence and accuracy on one kind of inputs (clean or adversarial).

    `ece` is the expected calibration error (ECE). `chance` is the 95 % quantile of the ECE of a perfectly calibrated
    model with the same confidences: an `ece` below `chance` is no evidence of miscalibration. `scaled` is the least ECE
    over all temperatures, reached at `temperature`. `nll_temperature` minimises the cross-entropy. `held_out` is the
    ECE if the logits of each half of the samples are divided by the `nll_temperature` of the other half.
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
        """The direction of the error: "overconfident" or "underconfident"; "calibrated" if `ece` ≤ `chance`."""
        if self.ece.value <= self.chance:
            return "calibrated"
        return "overconfident" if self.confidence > self.accuracy.value else "underconfident"

    @property
    def description(self) -> str:
        return "shows no miscalibration beyond chance" if self.tendency == "calibrated" else f"is {self.tendency}"


@dataclass(frozen=True)
class Calibration(CleanAndAdversarial[Reliability]):
    """A model's calibration on clean inputs and, if a Run was given, on adversarial inputs."""

    def findings(self) -> AnalysisReport:
        """Return a table with one column, and one reliability diagram, per kind of inputs (clean, adversarial)."""
        rows: dict[str, Callable[[Reliability], Cell]] = {
            "samples": lambda s: s.ece.n,
            "accuracy, %": lambda s: percent(s.accuracy),
            "mean confidence, %": lambda s: f"{100 * s.confidence:.1f}",
            "calibration error (ECE), %": lambda s: percent(s.ece),
            "95 % quantile if calibrated, %": lambda s: f"{100 * s.chance:.1f}",
            "least error over temperatures, %": lambda s: f"{100 * s.scaled:.1f}",
            "  at temperature": lambda s: f"{s.temperature:.3g}",
            "error at a held-out temperature, %": lambda s: percent(s.held_out),
            "temperature of least cross-entropy": lambda s: f"{s.nll_temperature:.3g}",
        }
        sentences = [
            f"On {s.inputs} inputs the model {s.description}: calibration error {percent(s.ece)} %, "
            f"{100 * s.scaled:.1f} % at temperature {s.temperature:.3g} (n = {s.ece.n})."
            for s in self.sides
        ]
        tables, figures = (self.table("Calibration", rows),), tuple(_diagram(s) for s in self.sides)
        return AnalysisReport("calibration", "Calibration", " ".join(sentences), tables, figures)

    def measures(self) -> tuple[Measure, ...]:
        """Return ECE, least ECE over temperatures, and its temperature on clean inputs (Croce et al., fig. 4)."""
        clean = self.clean
        return (
            Measure.percent("calibration error (ECE), %", clean.ece),
            Measure("least ECE over temperatures, %", 100 * clean.scaled),
            Measure("temperature of least ECE", clean.temperature),
        )


def _diagram(side: Reliability) -> Figure:
    series = (_points("unscaled", side.bins), _points(f"at temperature {side.temperature:.3g}", side.scaled_bins))
    return Figure(f"Reliability, {side.inputs} inputs", "line", "confidence", "accuracy", series, diagonal=True)


def _points(name: str, bins: Iterable[Bin]) -> Series:
    full = [b for b in bins if b.right.n]
    return interval_series(name, [b.confidence for b in full], [b.right for b in full], scale=1)


def calibration(
    classifier: ModelLike, problem: DataLike, run: AnyRun | None = None,
    *, bins: int = BINS, seed: int = 0, device: torch.device | str | None = None,
) -> Calibration:  # fmt: skip
    """Measure how far confidence is from accuracy, before and after temperature scaling.

    Method: expected calibration error (ECE) over bins of equal width. Two temperatures are compared: the temperature of
    least ECE on a grid, fitted and measured on the same samples as in Croce et al.; and the temperature T of least
    cross-entropy (exact, because cross-entropy is convex in 1/T), fitted on one half of the samples and measured on the
    other half. With a Run of the model, its adversarials are measured too; samples that the Run did not break stay
    clean. Intervals: basic bootstrap, keyed by the seed. Cost: one forward per sample, two with a Run. Reference: Guo
    et al. 2017; Croce et al. 2021, sec. 4.

    >>> import brinell
    >>> clean = calibration("demo", brinell.data.load("demo", 200)).clean
    >>> clean.ece.n, 0 <= clean.scaled <= clean.ece.value <= 1
    (200, True)
    """
    if bins < 1:
        raise InputError(expected="at least 1 bin", got=f"{bins}", remedy=f"Omit `bins` for the default, {BINS}.")
    model, data = coerce.as_classifier(classifier, device), coerce.as_problem(problem)
    stored = None if run is None else open_run_of(run, model)

    def side(name: str, chunks: Iterable[Chunk]) -> Reliability:
        return reliability(predict(model, chunks), name, bins, seed)

    adversarial = None if stored is None else side("adversarial", with_adversarials(stored, data))
    return Calibration(model.name, side("clean", read_chunks(data)), adversarial)


def reliability(predictions: Predictions, name: str = "clean", bins: int = BINS, seed: int = 0) -> Reliability:
    """Return the calibration of `predictions`; `name` says on which inputs they were made, e.g. "clean"."""
    if len(predictions) < 2:
        raise InputError(
            expected="at least 2 samples", got=f"{len(predictions)}", remedy="Pass more samples, hundreds if possible."
        )
    right, gaps = predictions.right, logit_gaps(predictions.logits)
    confidence = confidence_at(gaps, 1.0)
    temperature, scaled = least_error(gaps, right, bins)
    return Reliability(
        inputs=name,
        accuracy=predictions.accuracy,
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
    """Return the ECE of all samples if the logits of each half are divided by the temperature of the other half."""
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
        result.append(Bin(edges[k], edges[k + 1], mean, Proportion.of(right[inside])))
    return tuple(result)


def expected_calibration_error(confidence: Floats, right: Bools, bins: int = BINS) -> float:
    """Return Σ over bins of n_b / n · |mean confidence − accuracy|, with n_b of n samples in a bin (low, high].

    >>> expected_calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
    0.0
    """
    return _error(bin_index(confidence, bins), confidence - right, bins)


def bin_index(confidence: Floats, bins: int) -> Any:
    """Return for every confidence the index k of its bin, (k / bins, (k + 1) / bins]; confidence 0 is in bin 0."""
    edges = np.linspace(0, 1, bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)


def _error(bin_index: Any, gap: Floats, bins: int) -> float:
    return float(np.abs(np.bincount(bin_index, weights=gap, minlength=bins)).sum() / len(gap))


def logit_gaps(logits: Tensor) -> Tensor:
    """Return every logit minus the largest logit of its row, in float64."""
    z = logits.double()
    return z - z.amax(1, keepdim=True)


def confidence_at(gaps: Tensor, temperature: float) -> Floats:
    """Return the probability of every sample's predicted class at a temperature; `gaps` come from `logit_gaps`."""
    return np.asarray((1 / (gaps / temperature).exp().sum(1)).numpy())


def least_error(gaps: Tensor, right: Bools, bins: int) -> tuple[float, float]:
    """Return the grid temperature with the least calibration error (if several, the nearest to 1), and this error.

    Method: |mean confidence − accuracy| is a lower bound on the error, and the mean confidence decreases with the
    temperature. Search outwards from the temperature at which mean confidence and accuracy are equal, until the lower
    bound exceeds the least error found.
    """
    grid = np.unique(np.concatenate([GRID, 1 / GRID])).tolist()
    accuracy, candidates = float(right.mean()), []

    def excess(t: float) -> float:
        confidence = confidence_at(gaps, t)
        candidates.append((expected_calibration_error(confidence, right, bins), abs(math.log(t)), t))
        return float(confidence.mean()) - accuracy

    first = bisect_left(grid, 0.0, key=lambda t: -excess(t))
    for direction in (reversed(grid[:first]), grid[first:]):
        for t in direction:
            if abs(excess(t)) > min(candidates)[0] + 1e-12:
                break
    error, _, best = min(candidates)
    return best, error


def nll_temperature(logits: Tensor, y: Tensor) -> float:
    """Return the temperature of least cross-entropy, between 0.001 and 1000.

    Method: the cross-entropy is convex in b = 1/T. With logits z and p = softmax(b z), its slope is the mean of E_p[z −
    z_y] and its curvature the mean variance of z under p. Newton steps alternate with bisection.

    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0]]).repeat(4, 1)
    >>> round(nll_temperature(z, torch.tensor([0, 0, 0, 1])), 6)  # the odds are 3 to 1: 2 / T = log 3
    1.820478
    """
    z = logits.double()
    z = z - z.gather(1, y[:, None])
    low, high, b, iteration = 1 / HOTTEST, 1 / COLDEST, 1.0, 0
    while high > low * (1 + 1e-14):
        slope, rate = _slope(z, b)
        low, high = (b, high) if slope <= 0 else (low, b)
        newton = b - slope / rate if rate > 0 else np.inf
        if abs(newton - b) <= CLOSE * b:
            return float(1 / newton)
        b, iteration = (
            newton if iteration % 2 == 0 and low < newton < high else float(np.sqrt(low * high)),
            iteration + 1,
        )
    return float(1 / high)


def _slope(z: Tensor, b: float) -> tuple[float, float]:
    p = (z * b).softmax(1)
    mean = (p * z).sum(1)
    return float(mean.mean()), float(((p * z.square()).sum(1) - mean.square()).mean())


def error_interval(confidence: Floats, right: Bools, bins: int = BINS, seed: int = 0) -> Interval:
    """Return the calibration error with its basic bootstrap interval."""
    where, gap = bin_index(confidence, bins), confidence - right
    return bootstrap(lambda at: _error(where[at], gap[at], bins), len(gap), seed, "calibration", 0.0, 1.0)


def calibrated_quantile(confidence: Floats, bins: int, seed: int) -> float:
    """Return, by simulation, the 95 % quantile of the ECE of a perfectly calibrated model with these confidences."""
    where = bin_index(confidence, bins)
    drawn = [
        _error(where, confidence - (u < confidence), bins) for u in uniforms(len(confidence), seed, "calibrated model")
    ]
    return float(np.quantile(drawn, LEVEL))
