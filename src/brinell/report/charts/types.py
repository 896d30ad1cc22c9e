"""Figures that only reports have: waterfalls, histograms, and reference lines."""

from collections.abc import Sequence
from dataclasses import dataclass

# One colour per meaning on the whole page; "clean" is a paler "robust", as in the bar of the headline.
MEANINGS = {
    "robust": "c0", "clean": "clean", "broken by an attack": "c1", "misclassified": "c2", "forward passes": "c7",
    "backward passes": "c4",
}  # fmt: skip


def colour_classes(names: Sequence[str]) -> list[str]:
    """Return the CSS class for the colour of each series: by its name if all names are known, else by its position.

    >>> colour_classes(["clean", "robust"]), colour_classes(["robust", "mine"])
    (['clean', 'c0'], ['c0', 'c1'])
    """
    if all(name in MEANINGS for name in names):
        return [MEANINGS[name] for name in names]
    return [f"c{i % 8}" for i in range(len(names))]


@dataclass(frozen=True)
class WaterfallLevel:
    """One level of a waterfall, such as the accuracy after an attack, with its interval if it is known."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Waterfall:
    """A waterfall chart: decreasing levels, one per stage; `last` is the name of the bar that repeats the final level.

    >>> Waterfall("Accuracy", "accuracy (%)", (WaterfallLevel("clean", 90.0), WaterfallLevel("pgd", 40.0))).drops
    (50.0,)
    """

    title: str
    y: str
    levels: tuple[WaterfallLevel, ...]
    last: str = "final"

    @property
    def drops(self) -> tuple[float, ...]:
        """The decrease from each level to the next."""
        return tuple(a.value - b.value for a, b in zip(self.levels, self.levels[1:], strict=False))


@dataclass(frozen=True)
class Histogram:
    """A stacked histogram: `counts` has one tuple per name, with one count per bin between two `edges`.

    >>> Histogram("Distances", "distance", "samples", (0.0, 1.0, 2.0), ("all",), ((3, 4),)).counts
    ((3, 4),)
    """

    title: str
    x: str
    y: str
    edges: tuple[float, ...]
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.counts) or any(len(c) != len(self.edges) - 1 for c in self.counts):
            raise ValueError(
                f"{self.title}: expected one tuple of counts per name, with one count per bin (between two edges)"
            )


@dataclass(frozen=True)
class ReferenceLine:
    """A vertical line at a named value of the x axis, such as the radius of a threat."""

    x: float
    name: str
