"""Numbers with intervals: resampling with keys, and intervals in closed form where there are any."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brinell.ops import rng
from brinell.results import Difference, Interval, Proportion

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

DRAWS = 1000
# Numbers drawn at once.
VALUES_PER_BATCH = 2**18
LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


def resamples(n: int, seed: int, purpose: str, draws: int = DRAWS) -> Iterator[Ints]:
    """So many times n places among n, drawn with replacement; the same for the same arguments."""
    for key in _keys(n, seed, purpose, draws):
        yield from rng.integers(key, n, (n,)).numpy()


def uniforms(n: int, seed: int, purpose: str, draws: int = DRAWS) -> Iterator[Floats]:
    """So many times n numbers in [0, 1); the same for the same arguments."""
    for key in _keys(n, seed, purpose, draws):
        yield from rng.uniform(key, (n,)).double().numpy()


def _keys(n: int, seed: int, purpose: str, draws: int) -> Iterator[Tensor]:
    """A key per draw, as many together as memory is well used for."""
    key = rng.fold(rng.keys(seed, torch.arange(draws)), rng.digest(purpose))
    yield from key.split(max(1, VALUES_PER_BATCH // n))


def basic_bootstrap(value: float, draws: Floats, n: int, least: float = -math.inf, most: float = math.inf) -> Interval:
    """The basic bootstrap interval: the draws' quantiles mirrored at the value.

    A statistic that noise can only enlarge (a calibration error, a spread) is larger still in every draw; mirroring
    takes that out, where the plain quantiles would put it in twice. Reference: Davison & Hinkley 1997, sec. 5.2.

    >>> basic_bootstrap(1.0, np.array([1.0, 1.5, 2.0]), 10, least=0.0).low
    0.02...
    """
    below, above = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = (float(np.clip(2 * value - v, least, most)) for v in (above, below))
    # Where noise moves every draw to one side the mirrored quantiles may leave the value out; it is what was seen.
    return Interval(value, min(low, value), max(high, value), n)


def bootstrap(
    statistic: Callable[[Ints], float],
    n: int,
    seed: int,
    purpose: str,
    least: float = -math.inf,
    most: float = math.inf,
    draws: int = DRAWS,
) -> Interval:
    """A statistic of samples, given by their places, with its basic bootstrap interval.

    >>> v = np.arange(100.0)
    >>> found = bootstrap(lambda at: float(v[at].mean()), 100, 0, "example")
    >>> found.value, 40 < found.low < 46, 53 < found.high < 59
    (49.5, True, True)
    """
    drawn = np.array([statistic(at) for at in resamples(n, seed, purpose, draws)])
    return basic_bootstrap(statistic(np.arange(n)), drawn, n, least, most)


def split_halves(ids: Ints, seed: int, purpose: str) -> Bools:
    """Mark one half of the samples, chosen by their ids and the seed; with an odd number the unmarked are more.

    >>> int(split_halves(np.arange(7), 0, "example").sum())
    3
    """
    key = rng.fold(rng.keys(seed, torch.from_numpy(ids)), rng.digest(purpose)).numpy()
    chosen = np.zeros(len(ids), dtype=bool)
    chosen[np.argsort(key, kind="stable")[: len(ids) // 2]] = True
    return chosen


def independent_difference(a: Proportion, b: Proportion) -> Difference:
    """A minus B for independent samples, with Newcombe's score interval.

    Reference: Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10.

    >>> print(independent_difference(Proportion(56, 70), Proportion(48, 80)))
    +20.0 points [+5.2, +33.4]
    """
    value = a.value - b.value
    down = math.hypot(a.value - a.low, b.high - b.value)
    return Difference(value, value - down, value + math.hypot(a.high - a.value, b.value - b.low))


def mean_of_two(a: Proportion, b: Proportion) -> Interval:
    """The mean of two independent proportions, each counting half however many samples it has.

    Method: Wilson's intervals of both, squared and added, as in `independent_difference`.

    >>> print(mean_of_two(Proportion(50, 100), Proportion(50, 100)))
    0.5 [0.432, 0.568], n = 200
    """
    value = (a.value + b.value) / 2
    down = math.hypot(a.value - a.low, b.value - b.low) / 2
    return Interval(value, value - down, value + math.hypot(a.high - a.value, b.high - b.value) / 2, a.n + b.n)


def to_plain(value: Any) -> Any:
    """A result as plain data: proportions and intervals with their numbers by name.

    >>> to_plain((Proportion(1, 4), None))[0]["value"]
    0.25
    """
    if isinstance(value, Proportion):
        known = bool(value.n)
        return {
            "k": value.k,
            "n": value.n,
            "value": value.value if known else None,
            "low": value.low,
            "high": value.high,
        }
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
    """For a table: per cent and the interval.

    >>> percent(Proportion(478, 1000)), percent(Proportion(0, 0))
    ('47.8 [44.7, 50.9]', '')
    """
    if isinstance(p, Proportion) and not p.n:
        return ""
    return f"{100 * p.value:.1f} [{100 * p.low:.1f}, {100 * p.high:.1f}]"
