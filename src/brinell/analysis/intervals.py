"""Confidence intervals by keyed resampling or in closed form, and their form in tables and figures."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brinell.ops import rng
from brinell.results import Difference, Interval, Proportion
from brinell.results.analyses import Series

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

DRAWS = 1000
# Random numbers drawn at a time.
VALUES_PER_BATCH = 2**18
LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


def resamples(n: int, seed: int, purpose: str, draws: int = DRAWS) -> Iterator[Ints]:
    """Yield `draws` arrays of n indices drawn with replacement (bootstrap samples); the arguments determine them."""
    for key in _keys(n, seed, purpose, draws):
        yield from rng.integers(key, n, (n,)).numpy()


def uniforms(n: int, seed: int, purpose: str, draws: int = DRAWS) -> Iterator[Floats]:
    """Yield `draws` arrays of n uniform numbers in [0, 1); the arguments determine them."""
    for key in _keys(n, seed, purpose, draws):
        yield from rng.uniform(key, (n,)).double().numpy()


def _keys(n: int, seed: int, purpose: str, draws: int) -> Iterator[Tensor]:
    """Yield one random key per draw, in batches of VALUES_PER_BATCH // n keys, but at least one key."""
    key = rng.fold(rng.keys(seed, torch.arange(draws, device="cpu")), rng.digest(purpose))
    yield from key.split(max(1, VALUES_PER_BATCH // n))


def basic_bootstrap(value: float, draws: Floats, n: int, least: float = -math.inf, most: float = math.inf) -> Interval:
    """Return the basic bootstrap interval of a statistic: the quantiles of its `draws`, mirrored at its `value`.

    Noise can only enlarge some statistics, such as a calibration error, and enlarges them again in every draw.
    Mirroring removes this bias; plain quantiles would count it twice. Bounds are clipped to [`least`, `most`].
    Reference: Davison & Hinkley 1997, sec. 5.2.

    >>> basic_bootstrap(1.0, np.array([1.0, 1.5, 2.0]), 10, least=0.0).low
    0.02...
    """
    below, above = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = (float(np.clip(2 * value - v, least, most)) for v in (above, below))
    # If all draws lie on one side, the mirrored quantiles may exclude the observed value; include it.
    return Interval(value, min(low, value), max(high, value), n)


def bootstrap(
    statistic: Callable[[Ints], float], n: int, seed: int, purpose: str, least: float = -math.inf,
    most: float = math.inf, draws: int = DRAWS,
) -> Interval:  # fmt: skip
    """Return `statistic` of n samples with its basic bootstrap interval; `statistic` maps sample indices to a number.

    >>> v = np.arange(100.0)
    >>> mean = bootstrap(lambda at: float(v[at].mean()), 100, 0, "example")
    >>> mean.value, 40 < mean.low < 46, 53 < mean.high < 59
    (49.5, True, True)
    """
    drawn = np.array([statistic(at) for at in resamples(n, seed, purpose, draws)])
    return basic_bootstrap(statistic(np.arange(n)), drawn, n, least, most)


def split_halves(ids: Ints, seed: int, purpose: str) -> Bools:
    """Return a mask of a random half (rounded down) of the samples, determined by ids, seed and purpose.

    >>> int(split_halves(np.arange(7), 0, "example").sum())
    3
    """
    key = rng.fold(rng.keys(seed, torch.from_numpy(ids)), rng.digest(purpose)).numpy()
    chosen = np.zeros(len(ids), dtype=bool)
    chosen[np.argsort(key, kind="stable")[: len(ids) // 2]] = True
    return chosen


def independent_difference(a: Proportion, b: Proportion) -> Difference:
    """Return share a minus share b, from independent samples, with Newcombe's score interval.

    Reference: Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10.

    >>> print(independent_difference(Proportion(56, 70), Proportion(48, 80)))
    +20.0 points [+5.2, +33.4]
    """
    value = a.value - b.value
    down = math.hypot(a.value - a.low, b.high - b.value)
    return Difference(value, value - down, value + math.hypot(a.high - a.value, b.value - b.low))


def mean_of_two(a: Proportion, b: Proportion) -> Interval:
    """Return the mean of two independent proportions, with equal weights whatever their sample sizes.

    Method: the squared half-widths of the two Wilson intervals add up, as in `independent_difference`.

    >>> print(mean_of_two(Proportion(50, 100), Proportion(50, 100)))
    0.5 [0.432, 0.568], n = 200
    """
    value = (a.value + b.value) / 2
    down = math.hypot(a.value - a.low, b.value - b.low) / 2
    return Interval(value, value - down, value + math.hypot(a.high - a.value, b.high - b.value) / 2, a.n + b.n)


def to_plain(value: Any) -> Any:
    """Return a result as plain data for JSON: dataclasses become dicts, and numbers that are not finite become None.

    >>> to_plain((Proportion(1, 4), None))[0]["value"]
    0.25
    """
    if isinstance(value, Proportion):
        share = value.value if value.n else None
        return {"k": value.k, "n": value.n, "value": share, "low": value.low, "high": value.high}
    if isinstance(value, Difference):
        return {"value": value.value, "low": value.low, "high": value.high}
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def percent(p: "Proportion | Interval | Difference") -> str:
    """Return "value [low, high]" in per cent for a table cell; "" for a proportion of no samples.

    >>> percent(Proportion(478, 1000)), percent(Proportion(0, 0))
    ('47.8 [44.7, 50.9]', '')
    """
    if isinstance(p, Proportion) and not p.n:
        return ""
    return f"{100 * p.value:.1f} [{100 * p.low:.1f}, {100 * p.high:.1f}]"


def interval_series(
    name: str, x: Sequence[float | str], values: Sequence[Proportion | Interval], scale: float = 100
) -> Series:
    """Return a series of a figure with error bars; values and bounds are multiplied by `scale` (default: to per cent).

    >>> interval_series("robust", ["cat"], [Proportion(1, 4)]).y
    (25.0,)
    """
    bounds = ([v.value for v in values], [v.low for v in values], [v.high for v in values])
    return Series(name, tuple(x), *(tuple(scale * v for v in bound) for bound in bounds))
