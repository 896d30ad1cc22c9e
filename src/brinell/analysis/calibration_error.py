"""Calibration errors, their chance, and the temperatures that lessen them."""

import math
from bisect import bisect_left
from typing import Any

import numpy as np
from torch import Tensor

from brinell.analysis.intervals import LEVEL, Bools, Floats, bootstrap, uniforms
from brinell.results import Interval

# Croce et al. 2021, appendix on calibration: 15 bins of equal width; temperatures t and 1/t for t = 0.001, 0.002, … 1.
BINS = 15
GRID = np.arange(1, 1001) / 1000
# Between these the temperature of least cross-entropy is looked for; at an end there is none inside.
COLDEST, HOTTEST = 1e-3, 1e3
# A step of Newton's this small, as a share of where it starts, is the last: the next would be its square.
CLOSE = 1e-8


def expected_calibration_error(confidence: Floats, right: Bools, bins: int = BINS) -> float:
    """Σ over bins of n_b / n · |mean confidence − accuracy|; a confidence on an edge belongs to the bin below.

    >>> expected_calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
    0.0
    """
    return _error(bin_index(confidence, bins), confidence - right, bins)


def bin_index(confidence: Floats, bins: int) -> Any:
    """The bin of every confidence."""
    edges = np.linspace(0, 1, bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)


def _error(bin_index: Any, gap: Floats, bins: int) -> float:
    return float(np.abs(np.bincount(bin_index, weights=gap, minlength=bins)).sum() / len(gap))


def logit_gaps(logits: Tensor) -> Tensor:
    """How far every logit is below the largest, in float64."""
    z = logits.double()
    return z - z.amax(1, keepdim=True)


def confidence_at(gaps: Tensor, temperature: float) -> Floats:
    """The probability of the likeliest class at a temperature."""
    return np.asarray((1 / (gaps / temperature).exp().sum(1)).numpy())


def least_error(gaps: Tensor, right: Bools, bins: int) -> tuple[float, float]:
    """The temperature of the grid with the least error, of equal ones the nearest to 1, and that error.

    Method: no error is below |mean confidence − accuracy|, and the mean confidence falls as the temperature grows. So
    from where the two meet outwards, until that bound alone exceeds the least error found: the rest cannot be less.
    """
    grid = np.unique(np.concatenate([GRID, 1 / GRID])).tolist()
    accuracy, found = float(right.mean()), []

    def excess(t: float) -> float:
        confidence = confidence_at(gaps, t)
        found.append((expected_calibration_error(confidence, right, bins), abs(math.log(t)), t))
        return float(confidence.mean()) - accuracy

    first = bisect_left(grid, 0.0, key=lambda t: -excess(t))
    for way in (reversed(grid[:first]), grid[first:]):
        for t in way:
            if abs(excess(t)) > min(found)[0] + 1e-12:
                break
    error, _, best = min(found)
    return best, error


def nll_temperature(logits: Tensor, y: Tensor) -> float:
    """The temperature of least cross-entropy, between 0.001 and 1000.

    Method: with b = 1/T the cross-entropy is convex; its slope E_p[z − z_y], averaged, grows with b at the rate of the
    logits' variance. Newton's steps and halvings of the bracket in turn.

    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0]]).repeat(4, 1)
    >>> round(nll_temperature(z, torch.tensor([0, 0, 0, 1])), 6)  # the odds are 3 to 1: 2 / T = log 3
    1.820478
    """
    z = logits.double()
    z = z - z.gather(1, y[:, None])
    low, high, b, turn = 1 / HOTTEST, 1 / COLDEST, 1.0, 0
    while high > low * (1 + 1e-14):
        slope, rate = _slope(z, b)
        low, high = (b, high) if slope <= 0 else (low, b)
        newton = b - slope / rate if rate > 0 else np.inf
        if abs(newton - b) <= CLOSE * b:
            return float(1 / newton)
        b, turn = newton if turn % 2 == 0 and low < newton < high else float(np.sqrt(low * high)), turn + 1
    return float(1 / high)


def _slope(z: Tensor, b: float) -> tuple[float, float]:
    """The derivative of the cross-entropy with respect to 1/T, and the second one."""
    p = (z * b).softmax(1)
    mean = (p * z).sum(1)
    return float(mean.mean()), float(((p * z.square()).sum(1) - mean.square()).mean())


def error_interval(confidence: Floats, right: Bools, bins: int = BINS, seed: int = 0) -> Interval:
    """The calibration error with its basic bootstrap interval."""
    where, gap = bin_index(confidence, bins), confidence - right
    return bootstrap(lambda at: _error(where[at], gap[at], bins), len(gap), seed, "calibration", 0.0, 1.0)


def chance(confidence: Floats, bins: int, seed: int) -> float:
    """What a perfectly calibrated model with these confidences stays below in 95 of 100 samples."""
    where = bin_index(confidence, bins)
    drawn = [
        _error(where, confidence - (u < confidence), bins) for u in uniforms(len(confidence), seed, "calibrated model")
    ]
    return float(np.quantile(drawn, LEVEL))
