"""Compare the robustness curves of two models: where they cross, and at which radii they differ significantly."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from brinell.curves.curve import CONFIDENCE, Curve, Values

# Random exchanges of the two models' distances.
SWAPS, SEED = 2000, 0


@dataclass(frozen=True)
class CertainRange:
    """A range of radii, from `low` to `high` (inf: unbounded), in which the model `better` is significantly better.

    >>> print(CertainRange(0.1, 0.2, "A"))
    A from 0.1 to 0.2
    """

    low: float
    high: float
    better: str

    def __str__(self) -> str:
        end = "on" if np.isinf(self.high) else f"to {self.high:.4g}"
        return f"{self.better} from {self.low:.4g} {end}"


@dataclass(frozen=True)
class Crossing:
    """A radius, `at`, where two curves change order; its confidence interval is from `low` to `high`."""

    at: float
    low: float
    high: float


@dataclass(frozen=True)
class Crossings:
    """The comparison of two curves on the same samples.

    `observed` are all radii at which the curves change order. `real` are the significant crossings: one model is
    significantly better at radii below the crossing, the other model above it. `ranges` are the ranges in which one
    model is significantly better; between two of them the difference may be chance. `p_value` tests the hypothesis that
    the curves do not cross. `height` is how far the difference of the curves must be from 0, at any radius, to be
    significant.

    >>> a = Curve("L2", np.arange(40), np.r_[np.full(20, 0.1), np.full(20, 0.9)], "A")
    >>> b = Curve("L2", np.arange(40), np.full(40, 0.5), "B")
    >>> result = crossings(a, b)
    >>> [c.at for c in result.real], result.p_value < 0.05, [str(r) for r in result.ranges]
    ([0.5], True, ['B from 0.1 to 0.5', 'A from 0.5 to 0.9'])
    """

    name_a: str
    name_b: str
    n: int
    observed: tuple[float, ...]
    real: tuple[Crossing, ...]
    ranges: tuple[CertainRange, ...]
    p_value: float
    height: float
    confidence: float

    def __str__(self) -> str:
        seen = f"{len(self.observed)} changes of order seen, {len(self.real)} for certain ({100 * self.confidence:g} %)"
        where = "; ".join(f"{c.at:.4g} [{c.low:.4g}, {c.high:.4g}]" for c in self.real)
        better = "; ".join(_together(list(g)) for _, g in groupby(self.ranges, lambda r: r.better))
        first = f"{self.name_a} and {self.name_b}, n = {self.n}: {seen}{': ' + where if where else ''}"
        return f"{first}; p = {self.p_value:.2g}. Better for certain: {better or 'neither at any radius'}."


def _together(ranges: list[CertainRange]) -> str:
    """Describe successive ranges of the same model in one phrase that claims nothing about the gaps between ranges."""
    if len(ranges) == 1:
        return str(ranges[0])
    end = "and beyond" if np.isinf(ranges[-1].high) else f"and {ranges[-1].high:.4g}"
    return f"{ranges[0].better} in {len(ranges)} ranges between {ranges[0].low:.4g} {end}"


def crossings(a: Curve, b: Curve, confidence: float = CONFIDENCE, swaps: int = SWAPS) -> Crossings:
    """Return where two curves on the same samples cross; the confidence holds for all radii at once.

    Method: D(eps) = R_a − R_b is the difference of the curves. If the models were equally robust, exchanging a sample's
    two distances would change nothing; the largest |D| under random exchanges shows how far D deviates from 0 by chance
    (`height`). Radii with |D| above `height` form significant ranges. A crossing is significant if it lies between two
    significant ranges of opposite sign; the p-value is the larger of the p-values for D > 0 and for D < 0. Cost:
    `swaps` exchanges of n pairs.
    """
    x, y = a.paired(b)
    low, high, sign = np.minimum(x, y), np.maximum(x, y), np.sign(y - x)
    active = sign != 0
    low, high, sign = low[active], high[active], sign[active]
    n = len(x)
    radii, value = _difference(low, high, sign, n)
    top, bottom = _extremes_under_exchange(low, high, radii, n, swaps)
    height = float(np.quantile(np.maximum(top, -bottom), confidence)) if len(top) else 0.0
    certain = np.where(np.abs(value) > height + 1e-12, np.sign(value), 0.0)
    names = a.name or "A", b.name or "B"
    if names[0] == names[1]:
        names = f"{names[0]} (A)", f"{names[1]} (B)"
    return Crossings(
        *names, n, _changes(radii, value), _real(radii, certain, value), _ranges(radii, certain, names),
        _p_value(value, top, bottom), height, confidence,
    )  # fmt: skip


def _difference(low: Values, high: Values, sign: Values, n: int) -> tuple[Values, Values]:
    """Return the radii at which R_a − R_b changes, and the value of R_a − R_b from each of these radii to the next."""
    at, change = np.concatenate([low, high]), np.concatenate([sign, -sign]) / max(n, 1)
    finite = np.isfinite(at)
    radii, place = np.unique(at[finite], return_inverse=True)
    return radii, np.cumsum(np.bincount(place, change[finite], len(radii)))


def _extremes_under_exchange(low: Values, high: Values, radii: Values, n: int, swaps: int) -> tuple[Values, Values]:
    """Return, for each of `swaps` random exchanges, the largest and the smallest R_a − R_b over all radii."""
    if not len(low):
        return np.zeros(0), np.zeros(0)
    start = np.searchsorted(radii, low)
    end = np.where(np.isfinite(high), np.searchsorted(radii, high), len(radii))
    generator = np.random.default_rng(SEED)
    extremes = np.zeros((2, swaps))
    for k in range(swaps):
        sign = generator.integers(0, 2, len(low)) * 2.0 - 1
        change = np.bincount(start, sign, len(radii) + 1) - np.bincount(end, sign, len(radii) + 1)
        path = np.cumsum(change[:-1]) / n
        extremes[:, k] = path.max(initial=0.0), path.min(initial=0.0)
    return extremes[0], extremes[1]


def _p_value(value: Values, top: Values, bottom: Values) -> float:
    """Return the p-value of "the curves do not cross": the larger of the p-values of R_a > R_b and R_a < R_b."""
    above, below = value.max(initial=0.0), value.min(initial=0.0)
    if above <= 0 or below >= 0:
        return 1.0
    weaker = max((top >= above - 1e-12).sum(), (bottom <= below + 1e-12).sum())
    return float((1 + weaker) / (1 + len(top)))


def _changes(radii: Values, value: Values) -> tuple[float, ...]:
    """Return the radii at which the difference of the curves, `value`, changes sign; zeros are ignored."""
    kept = np.abs(value) > 1e-12
    sign, at = np.sign(value[kept]), radii[kept]
    return tuple(at[1:][sign[1:] != sign[:-1]].tolist())


def _real(radii: Values, certain: Values, value: Values) -> tuple[Crossing, ...]:
    real = []
    (places,) = np.nonzero(certain)
    for i, j in pairwise(places.tolist()):
        if certain[i] != certain[j]:
            inside = _changes(radii[i : j + 1], value[i : j + 1])
            real.append(Crossing(inside[len(inside) // 2], float(radii[i]), float(radii[j])))
    return tuple(real)


def _ranges(radii: Values, certain: Values, names: Sequence[str]) -> tuple[CertainRange, ...]:
    edges = np.concatenate([radii, [np.inf]])
    ranges: list[CertainRange] = []
    for i, s in enumerate(certain.tolist()):
        better = names[0] if s < 0 else names[1]
        if s and ranges and ranges[-1].high == edges[i] and ranges[-1].better == better:
            ranges[-1] = CertainRange(ranges[-1].low, float(edges[i + 1]), better)
        elif s:
            ranges.append(CertainRange(float(radii[i]), float(edges[i + 1]), better))
    return tuple(ranges)
