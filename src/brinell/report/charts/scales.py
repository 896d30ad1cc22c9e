"""Axes: round ticks, positions, and numbers as text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
# Smaller ranges count as empty: their steps would be subnormal numbers.
LEAST = 1e-290


@dataclass(frozen=True)
class AxisScale:
    """A linear map of numbers from low to high onto pixels from start to stop.

    >>> AxisScale(0.0, 50.0, 10.0, 110.0)(25.0)
    60.0
    """

    low: float
    high: float
    start: float
    stop: float
    whole: bool = False  # ticks at whole numbers only

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """Return about `count` round values of the axis with their texts.

        >>> AxisScale(0.0, 2.0, 0.0, 100.0, whole=True).ticks()
        [(0.0, '0'), (1.0, '1'), (2.0, '2')]
        """
        size = step(self.low, self.high, count, self.whole)
        return [(v, tick_text(v, size)) for v in ticks(self.low, self.high, count, self.whole)]


def step(low: float, high: float, count: int = 5, whole: bool = False) -> float:
    """Return a round step size that gives about `count` ticks; with `whole`, a whole number, for axes of counts.

    >>> step(0.0, 100.0), step(0.0, 0.031), step(3.0, 3.0), step(0.0, 2.0, whole=True), step(0.0, 12.0, whole=True)
    (20.0, 0.005, 1.0, 1.0, 2.0)
    """
    raw = (high - low) / max(count, 1)
    if not (raw > 0 and math.isfinite(raw)) or (whole and raw < 1):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    sizes = [r * power for r in ROUND if not whole or (r * power).is_integer()]
    return min(sizes, key=lambda size: abs(math.log(size / raw)))


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return the round numbers from low to high, about `count` of them.

    >>> ticks(0.0, 1.0), ticks(-3.0, 11.0), ticks(0.0, 2.0, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.5, 0.0, 2.5, 5.0, 7.5, 10.0], [0.0, 1.0, 2.0])
    """
    size = step(low, high, count, whole)
    first = math.ceil(low / size - 1e-9)
    last = math.floor(high / size + 1e-9)
    return [float(f"{i * size:.12g}") for i in range(first, last + 1)]


def tick_text(value: float, size: float) -> str:
    """Format a tick with as few digits as `size`, the distance between ticks, allows.

    >>> tick_text(0.2, 0.2), tick_text(20.0, 20.0), tick_text(12000.0, 2000.0), tick_text(0.00002, 0.00001)
    ('0.2', '20', '12,000', '2e-05')
    """
    if value == 0:
        return "0"
    if size < 1e-3 or abs(value) >= 1e7:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(size) + 1e-9))
    digits += abs(size * 10**digits - round(size * 10**digits)) > 1e-6
    return f"{value:,.{digits}f}".replace("-", "−")


def number(value: object) -> str:
    """Format a table cell: integers with commas, other numbers with four digits, and "–" for None and nan.

    >>> number(12345), number(0.0313725), number(float("nan")), number(None), number("as it is")
    ('12,345', '0.03137', '–', '–', 'as it is')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    text = f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−") if "e" not in text else text


def finite(values: Iterable[object]) -> list[float]:
    """Return the finite numbers among the values.

    >>> finite([1.0, float("inf"), "name", 2])
    [1.0, 2.0]
    """
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def are_whole(values: Sequence[float], label: str) -> bool:
    """Return whether an axis shows counts: whole numbers, and no percentages.

    >>> are_whole([0.0, 2.0], "samples"), are_whole([0.5, 2.0], "samples"), are_whole([0.0, 100.0], "accuracy (%)")
    (True, False, False)
    """
    return bool(values) and "%" not in label and all(v.is_integer() for v in values)


def span(values: Sequence[float], label: str = "") -> tuple[float, float]:
    """Return the range of an axis: 0 to 100 for percentages, else two round numbers, the lower one 0 if 0 is near.

    >>> span([20.0, 80.0], "accuracy (%)"), span([3.0, 9.0]), span([100.0, 102.0]), span([0.0, 101.0])
    ((0.0, 100.0), (0.0, 10.0), (100.0, 102.0), (0.0, 125.0))
    """
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if "%" in label and low >= 0 and high <= 100:
        return 0.0, 100.0
    if 0 <= low <= 0.6 * high:
        low = 0.0
    if high <= 0 and high >= 0.6 * low:
        high = 0.0
    if high - low < LEAST:
        low, high = (0.0, 1.0) if 0 <= low < LEAST else (low - 0.5, high + 0.5)
    ends, whole = (low, high), are_whole(values, label)
    for _ in range(3):  # rounding the ends may change the ticks, and new ticks may change the ends
        size = step(*ends, whole=whole)
        ends = math.floor(low / size + 1e-9) * size, math.ceil(high / size - 1e-9) * size
        if step(*ends, whole=whole) == size:
            break
    return float(f"{ends[0]:.12g}"), float(f"{ends[1]:.12g}")
