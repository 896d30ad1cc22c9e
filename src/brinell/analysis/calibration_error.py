"""The expected calibration error, its null distribution, and the temperatures that reduce it."""

import math
from bisect import bisect_left
from typing import Any

import numpy as np
from torch import Tensor

from brinell.analysis.intervals import LEVEL, Bools, Floats, bootstrap, uniforms
from brinell.results import Interval

# Croce et al. 2021, appendix on calibration: 15 bins of equal width; temperatures t and 1/t for t = 0.001 … 1.
BINS = 15
GRID = np.arange(1, 1001) / 1000
# The range searched for the temperature of least cross-entropy.
COLDEST, HOTTEST = 1e-3, 1e3
# Newton's method stops after a step this small relative to its start: the next would be its square.
CLOSE = 1e-8


def expected_calibration_error(confidence: Floats, right: Bools, bins: int = BINS) -> float:
    """Return Σ over bins of n_b / n · |mean confidence − accuracy|; an edge belongs to the bin below.

    >>> expected_calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
    0.0
    """
    return _error(bin_index(confidence, bins), confidence - right, bins)


def bin_index(confidence: Floats, bins: int) -> Any:
    """Return the bin of every confidence."""
    edges = np.linspace(0, 1, bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)


def _error(bin_index: Any, gap: Floats, bins: int) -> float:
    return float(np.abs(np.bincount(bin_index, weights=gap, minlength=bins)).sum() / len(gap))


def logit_gaps(logits: Tensor) -> Tensor:
    """Return how far every logit is below the largest, in float64."""
    z = logits.double()
    return z - z.amax(1, keepdim=True)


def confidence_at(gaps: Tensor, temperature: float) -> Floats:
    """Return the probability of the predicted class at a temperature."""
    return np.asarray((1 / (gaps / temperature).exp().sum(1)).numpy())


def least_error(gaps: Tensor, right: Bools, bins: int) -> tuple[float, float]:
    """Return the grid temperature with the least error (of ties the nearest to 1), and that error.

    Method: the error is at least |mean confidence − accuracy|, and the mean confidence falls with the temperature.
    Search outwards from where the two are equal, until this bound exceeds the least error found.
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

    Method: the cross-entropy is convex in b = 1/T; its slope is the mean of E_p[z − z_y], and its curvature the mean
    variance of the logits under p. Newton steps alternate with bisection of the bracket.

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
    """Return the first and second derivative of the cross-entropy with respect to 1/T."""
    p = (z * b).softmax(1)
    mean = (p * z).sum(1)
    return float(mean.mean()), float(((p * z.square()).sum(1) - mean.square()).mean())


def error_interval(confidence: Floats, right: Bools, bins: int = BINS, seed: int = 0) -> Interval:
    """Return the calibration error with its basic bootstrap interval."""
    where, gap = bin_index(confidence, bins), confidence - right
    return bootstrap(lambda at: _error(where[at], gap[at], bins), len(gap), seed, "calibration", 0.0, 1.0)


def calibrated_quantile(confidence: Floats, bins: int, seed: int) -> float:
    """Return the 95 % quantile of the error of a perfectly calibrated model with these confidences."""
    where = bin_index(confidence, bins)
    drawn = [
        _error(where, confidence - (u < confidence), bins) for u in uniforms(len(confidence), seed, "calibrated model")
    ]
    return float(np.quantile(drawn, LEVEL))
