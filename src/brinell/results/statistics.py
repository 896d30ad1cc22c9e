"""Proportions with intervals, and tests for paired outcomes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from brinell.errors import InputError


def wilson(k: int | float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval (low, high) for k successes in n trials; k may be a mean of counts.

    Reference: Wilson, JASA 22 (1927), 209-212.

    >>> tuple(round(v, 4) for v in wilson(478, 1000))
    (0.4472, 0.509)
    """
    _check_counts(k, n)
    if n == 0:
        return 0.0, 1.0
    z2 = _z(confidence) ** 2
    p = k / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return (0.0 if k == 0 else max(0.0, centre - half)), (1.0 if k == n else min(1.0, centre + half))


class Proportion(float):
    """The proportion k / n with its 95 % Wilson interval; a float in every calculation, nan when n is 0.

    >>> print(Proportion(478, 1000))
    47.8 % [44.7, 50.9], n = 1,000
    >>> import json
    >>> p = Proportion(1, 4)
    >>> p < 0.5, round(100 * p), f"{p:.2f}", json.dumps([p])
    (True, 25, '0.25', '[0.25]')
    >>> Proportion(0, 0).low, Proportion(0, 0).high
    (0.0, 1.0)
    """

    __slots__ = ("k", "n")
    k: int
    n: int

    def __new__(cls, k: int, n: int) -> "Proportion":
        _check_counts(k, n)
        self = super().__new__(cls, k / n if n else math.nan)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "n", n)
        return self

    def __reduce__(self) -> tuple[type["Proportion"], tuple[int, int]]:
        return type(self), (self.k, self.n)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Proportion cannot be changed: {name}")

    @classmethod
    def of(cls, mask: Any) -> "Proportion":
        """Return the share of true values in a boolean array or tensor."""
        return cls(int(mask.sum()), len(mask))

    def __eq__(self, other: object) -> bool:
        # Two proportions are equal if their counts are; so are two without samples.
        return (self.k, self.n) == (other.k, other.n) if isinstance(other, Proportion) else super().__eq__(other)

    __hash__ = float.__hash__

    @property
    def value(self) -> float:
        """The fraction k / n, or nan when n is 0."""
        return float(self)

    @property
    def low(self) -> float:
        """Lower end of the 95 % Wilson interval."""
        return wilson(self.k, self.n)[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % Wilson interval."""
        return wilson(self.k, self.n)[1]

    def __repr__(self) -> str:
        return f"Proportion(k={self.k}, n={self.n})"

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}], n = {self.n:,}"


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval, and the number of samples it is computed from.

    >>> print(Interval(0.25, 0.2, 0.3, 400))
    0.25 [0.2, 0.3], n = 400
    """

    value: float
    low: float
    high: float
    n: int | None = None

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}], n = {self.n}"


class Difference(Interval):
    """A difference of two proportions with its confidence interval.

    >>> print(Difference(0.02, -0.01, 0.05))
    +2.0 points [-1.0, +5.0]
    """

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def mcnemar(b: int, c: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: b pairs succeed only in A, c pairs only in B.

    Method: binomial test of b successes in b + c trials with probability 1/2, in exact integers.

    >>> mcnemar(1, 9)
    0.021484375
    """
    _check_counts(b, b + c)
    n, term, tail = b + c, 1, 1
    for i in range(min(b, c)):
        term = term * (n - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def paired_difference(both: int, only_a: int, only_b: int, neither: int, confidence: float = 0.95) -> Difference:
    """Return proportion A minus proportion B over the same samples, with Newcombe's paired score interval.

    `both`, `only_a`, `only_b` and `neither` count the samples that succeed in A and B, only in A, only in B, in none.
    Method: the distances from each proportion to its Wilson limits are squared and added, with the
    continuity-corrected correlation.
    Reference: Newcombe, Statistics in Medicine 17 (1998), 2635-2650, method 10.

    >>> print(paired_difference(36, 12, 2, 0))
    +20.0 points [+5.7, +34.0]
    """
    a, b = both + only_a, both + only_b
    n = a + only_b + neither
    if min(both, only_a, only_b, neither) < 0 or n == 0:
        raise _bad_counts(f"both={both}, only_a={only_a}, only_b={only_b}, neither={neither}")
    (low_a, high_a), (low_b, high_b) = wilson(a, n, confidence), wilson(b, n, confidence)
    phi = _correlation(both, only_a, only_b, neither)
    down = _combine(a / n - low_a, high_b - b / n, phi)
    up = _combine(high_a - a / n, b / n - low_b, phi)
    value = (only_a - only_b) / n
    return Difference(value, value - down, value + up)


def upper_bound(k: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson upper bound on the success probability, given k successes in n trials.

    Method: bisection for the p at which at most k successes have probability 1 - confidence.
    Reference: Clopper & Pearson, Biometrika 26 (1934), 404-413.

    >>> round(upper_bound(0, 100), 4)
    0.0295
    """
    _check_counts(k, n)
    _z(confidence)
    if k == n:
        return 1.0
    log_choose = _log_choose(k, n)
    low, high = k / n, 1.0
    while high - low > 1e-15 and low < (middle := (low + high) / 2) < high:
        if _binomial_cdf(log_choose, n, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def lower_bound(k: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson lower bound on the success probability, given k successes in n trials.

    Reference: Clopper & Pearson, Biometrika 26 (1934), 404-413.

    >>> round(lower_bound(100, 100), 4), lower_bound(0, 100)
    (0.9705, 0.0)
    """
    return 1 - upper_bound(n - k, n, confidence)


def hidden(k: int, m: int, population: int, confidence: float = 0.95) -> tuple[int, int]:
    """Return a lower and an upper bound on the number of marked items among `population` items.

    m items were drawn without replacement, and k of them are marked. Each bound is one-sided, of the given confidence.
    Method: the smallest and the largest number for which the hypergeometric tail that contains k has a probability
    above 1 - confidence.

    >>> hidden(0, 60, 480), hidden(2, 60, 480), hidden(3, 10, 10)
    ((0, 21), (4, 46), (3, 3))
    """
    _check_counts(k, m)
    _check_counts(m, population)
    _z(confidence)
    low = _first(lambda marked: _drawn(k, m, marked, population)[1] > 1 - confidence, k, population - m + k)
    high = _first(lambda marked: _drawn(k, m, marked, population)[0] <= 1 - confidence, k, population - m + k + 1) - 1
    return low, high


def sample_size(marked: int, population: int, confidence: float = 0.95) -> int:
    """Return how many of `population` items to draw so that one of `marked` items is drawn with this confidence.

    Method: the smallest number for which the hypergeometric probability to draw no marked item is at most
    1 - confidence. It is the inverse of `hidden`: if none is drawn, at most `marked` - 1 are marked.

    >>> sample_size(25, 500), sample_size(1, 500), sample_size(5, 5), sample_size(1, 0)
    (56, 476, 1, 0)
    >>> hidden(0, sample_size(25, 500), 500)[1]
    24
    """
    _check_counts(marked, max(population, marked))
    _z(confidence)
    if not population:
        return 0
    marked = max(1, min(marked, population))
    return _first(lambda m: _drawn(0, m, marked, population)[0] <= 1 - confidence, 1, population - marked + 1)


def _first(condition: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest integer from `low` to `high` that meets a monotone condition; `high` if no other does."""
    while low < high:
        middle = (low + high) // 2
        if condition(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _drawn(k: int, m: int, marked: int, population: int) -> tuple[float, float]:
    """Return the probabilities of at most k, and of at least k, marked items among m drawn without replacement."""
    rest, whole = population - marked, _log_ways(population, m)
    possible = range(max(0, m - rest), min(m, marked) + 1)
    probability = {i: math.exp(_log_ways(marked, i) + _log_ways(rest, m - i) - whole) for i in possible}
    return sum(p for i, p in probability.items() if i <= k), sum(p for i, p in probability.items() if i >= k)


def _log_ways(n: int, i: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)


def _correlation(both: int, only_a: int, only_b: int, neither: int) -> float:
    n = both + only_a + only_b + neither
    spread = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    if spread == 0:
        return 0.0
    excess = float(both * neither - only_a * only_b)
    corrected = max(excess - n / 2, 0.0) if excess > 0 else excess
    return corrected / math.sqrt(spread)


def _combine(p: float, q: float, phi: float) -> float:
    return math.sqrt(max(p * p - 2 * phi * p * q + q * q, 0.0))


def _log_choose(k: int, n: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    i = np.arange(1, k + 1, dtype=np.float64)
    return np.concatenate([[0.0], np.cumsum(np.log((n - i + 1) / i))])


def _binomial_cdf(log_choose: "np.ndarray[tuple[int], np.dtype[np.float64]]", n: int, p: float) -> float:
    i = np.arange(len(log_choose))
    return float(np.exp(log_choose + i * math.log(p) + (n - i) * math.log1p(-p)).sum())


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(
            expected="a confidence between 0 and 1", got=f"{confidence}", remedy="Pass 0.95 for 95 per cent."
        )
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _check_counts(k: int | float, n: int) -> None:
    if not 0 <= k <= n:
        raise _bad_counts(f"k={k}, n={n}")


def _bad_counts(got: str) -> InputError:
    return InputError(expected="counts with 0 <= k <= n", got=got, remedy="Pass non-negative counts, not fractions.")
