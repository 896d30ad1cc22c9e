"""Reports of analyses: tables and figures as data, stored in the Run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from brinell.errors import RunError
from brinell.results.format.files import write_atomic
from brinell.results.statistics import Interval, Proportion

FOLDER, END = "analyses", ".json"

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table with a title; every row has one cell per column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: every row must have {len(self.columns)} cells, one per column")


@dataclass(frozen=True)
class Series:
    """A named series of points in a figure; `low` and `high`, if given, are its band or error bars."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or any(len(b) not in (0, len(self.y)) for b in (self.low, self.high)):
            raise ValueError(f"{self.name}: x and y must have the same length, as must low and high if given")


@dataclass(frozen=True)
class Figure:
    """A figure as data: title, kind, axes and series.

    `kind` is `bars` (the x values are names), `line`, `steps` (right-continuous), `points` or `matrix` (every
    series is one row of the matrix).
    """

    title: str
    kind: Literal["bars", "line", "steps", "points", "matrix"]
    x: str
    y: str
    series: tuple[Series, ...]
    diagonal: bool = False  # draw y = x, as reliability diagrams do


@dataclass(frozen=True)
class Measure:
    """A number that describes a model, with its 95 % interval if known, for tables and figures of many models.

    `name` says what the number is, with its unit. The figure draws the number against the robust accuracy, or against
    the value of `x`, a pair of name and value.

    >>> print(Measure.percent("ECE, %", Proportion(1, 4)))
    25 [4.559, 69.94]
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    x: tuple[str, float] | None = None

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]")

    @classmethod
    def percent(cls, name: str, p: Proportion | Interval, x: tuple[str, float] | None = None) -> "Measure":
        """Return the measure for a share, or for a difference of shares, in per cent."""
        return cls(name, 100 * p.value, 100 * p.low, 100 * p.high, x)


@dataclass(frozen=True)
class AnalysisReport:
    """The report of one analysis of a Run or a classifier: a summary, tables and figures."""

    kind: str
    title: str
    summary: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "AnalysisReport":
        """Return the report from the data that `to_dict` returned."""
        tables = [Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in data["tables"]]
        figures = [Figure(**{**f, "series": tuple(map(_series, f["series"]))}) for f in data["figures"]]
        return cls(data["kind"], data["title"], data["summary"], tuple(tables), tuple(figures))

    def save(self, run: Path) -> Path:
        """Write the report into a Run's folder, replacing an older report of the same kind; return the file's path."""
        (run / FOLDER).mkdir(exist_ok=True)
        path = run / FOLDER / f"{self.kind}{END}"
        write_atomic(path, (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        return path


def _series(data: dict[str, Any]) -> Series:
    return Series(data["name"], *(tuple(data[name]) for name in ("x", "y", "low", "high")))


def saved(run: Path) -> list[AnalysisReport]:
    """Return the analysis reports stored in a Run's folder, sorted by kind."""
    reports = []
    for path in sorted((run / FOLDER).glob(f"*{END}")):
        try:
            reports.append(AnalysisReport.from_dict(json.loads(path.read_text())))
        except (ValueError, KeyError, TypeError) as error:
            got, remedy = f"{path}: {error}", "Delete the file and run the analysis again."
            raise RunError(expected="an analysis that Brinell wrote", got=got, remedy=remedy) from error
    return reports
