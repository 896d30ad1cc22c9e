"""Reports of analyses: tables and figures as data, stored in the Run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from brinell.errors import RunError
from brinell.results.format.manifest import MANIFEST, SEAL, decode, seal
from brinell.results.statistics import Interval, Proportion
from brinell.storage import make_folder, write_output
from brinell.untrusted import cleaned, read_json

FOLDER, END = "analyses", ".json"
# The field that says which Run an analysis belongs to.
OF = "run"

Cell = str | int | float | None
FigureKind = Literal["bars", "line", "steps", "points", "matrix"]


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
    kind: FigureKind
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
        _refuse_types(data)
        tables = [Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in data["tables"]]
        figures = [Figure(**{**f, "series": tuple(map(_series, f["series"]))}) for f in data["figures"]]
        return cls(data["kind"], data["title"], data["summary"], tuple(tables), tuple(figures))

    def save(self, run: Path) -> Path:
        """Write the report into a Run's folder, replacing an older report of the same kind; return the file's path."""
        make_folder(run / FOLDER)
        path = run / FOLDER / f"{self.kind}{END}"
        data = {**self.to_dict(), OF: _run_id(run)}
        write_output(path, json.dumps(seal(data), indent=1) + "\n")
        return path


def _run_id(run: Path) -> str | None:
    """Return what tells a Run from all others, None for a Run without checksums."""
    checksums = decode(run).checksums if (run / MANIFEST).exists() else None
    return None if checksums is None else str(checksums.get("start"))


def _refuse_types(data: dict[str, Any]) -> None:
    """Raise a TypeError unless all texts are text, and all cells and points are text, numbers or None."""
    tables, figures = data["tables"], data["figures"]
    series = [s for f in figures for s in f["series"]]
    texts = [*(data[k] for k in ("kind", "title", "summary")), *(t["title"] for t in tables)]
    texts += [*(c for t in tables for c in t["columns"]), *(s["name"] for s in series)]
    texts += [f[k] for f in figures for k in ("title", "kind", "x", "y")]
    cells = [c for t in tables for row in t["rows"] for c in row] + [x for s in series for x in s["x"]]
    numbers = [v for s in series for k in ("y", "low", "high") for v in s[k]]
    for values, kinds in ((texts, str), (cells, str | int | float | None), (numbers, int | float | None)):
        if not all(isinstance(value, kinds) for value in values):
            raise TypeError("a value of a wrong type")
    if not all(f["kind"] in get_args(FigureKind) for f in figures):
        raise ValueError("a figure of an unknown kind")


def _series(data: dict[str, Any]) -> Series:
    return Series(data["name"], *(tuple(data[name]) for name in ("x", "y", "low", "high")))


def saved(run: Path) -> list[AnalysisReport]:
    """Return the analysis reports stored in a Run's folder, sorted by kind."""
    reports = []
    for path in sorted((run / FOLDER).glob(f"*{END}")):
        try:
            data = read_json(path, finite=False)
            if SEAL in data and data[SEAL] != seal(data)[SEAL]:  # earlier versions wrote no checksum
                raise ValueError(f"other content than its own field {SEAL} says")
            if SEAL not in data and set(data) - set(AnalysisReport.__dataclass_fields__):
                raise ValueError("unknown fields")
            if data.get(OF) != _run_id(run) and SEAL in data:
                raise ValueError("the analysis of another Run")
            reports.append(AnalysisReport.from_dict(cleaned(data)))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError) as error:
            got, remedy = f"{path}: {error}", "Delete the file and run the analysis again."
            raise RunError(expected="an analysis that Brinell wrote", got=got, remedy=remedy) from error
    return reports
