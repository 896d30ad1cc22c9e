"""Run an exhibit and store its tables and pictures beside the paper's numbers."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brinell.environment import version
from brinell.errors import BrinellError, InputError, RunError
from brinell.ops.defaults import standard_defaults
from brinell.reproduce.catalogue import find
from brinell.reproduce.exhibit import CALCULATED, MEASURED, RECORDS, Exhibit
from brinell.reproduce.setup import Setup, without_folders
from brinell.results import Run
from brinell.results.analyses import AnalysisReport, Cell, Table
from brinell.results.format.manifest import MANIFEST
from brinell.storage import make_folder, write_atomic
from brinell.untrusted import read_json

RESULT, TEXT, PICTURE = "result.json", "result.md", "result.svg"


@dataclass(frozen=True)
class Reproduction:
    """The result of one exhibit: the measured report, the setup, the command and the seconds.

    `seconds` is the time of this call. `resumed` says that Runs of an earlier call were used, so that `seconds` is not
    the cost. `run_seconds` is the sum of the seconds of all Runs of the exhibit, None if it has no Runs.
    """

    exhibit: Exhibit
    report: AnalysisReport
    setup: dict[str, Any]
    command: str
    seconds: float
    version: str
    picture: str | None = None
    resumed: bool = False
    run_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data that `from_json` reads back."""
        return {
            "exhibit": self.exhibit.name, "command": self.command, "setup": self.setup,
            "seconds": round(self.seconds, 1), "resumed": self.resumed,
            "run_seconds": None if self.run_seconds is None else round(self.run_seconds, 1),
            "version": self.version, "picture": self.picture,
            "report": self.report.to_dict(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Reproduction":
        """Return the result that `to_json` wrote."""
        return cls(
            find(data["exhibit"]), AnalysisReport.from_dict(data["report"]), data["setup"], data["command"],
            data["seconds"], data["version"], data["picture"], data.get("resumed", False), data.get("run_seconds"),
        )  # fmt: skip

    @classmethod
    def open(cls, folder: Path) -> "Reproduction":
        """Return the result stored in a folder."""
        try:
            return cls.from_json(read_json(folder / RESULT, finite=False))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                expected=f"a {RESULT} that brinell reproduce wrote",
                got=f"the folder {folder} ({error})",
                remedy="Run brinell reproduce NAME --out FOLDER again.",
            ) from error

    @property
    def time(self) -> str:
        """The time that the numbers took, in words."""
        if not self.resumed:
            return f"{self.seconds:.0f} s"
        return "from stored Runs" if self.run_seconds is None else f"{self.run_seconds:.0f} s, from stored Runs"

    @property
    def heading(self) -> str:
        """What stands before the title of our tables: measured, or where else the numbers come from."""
        if self.exhibit.source in (MEASURED, RECORDS, CALCULATED):
            return self.exhibit.origin.capitalize()
        return f"Measured as in {self.exhibit.source}"

    def to_markdown(self, pictures: str = "") -> str:
        """Return the measured and the paper's tables, and why they differ; `pictures` is put before picture names."""
        e = self.exhibit
        lines = [
            f"### {e.place}: {e.title}",
            "",
            f"`{self.command}` ({self.time})",
            "",
        ]
        lines += [self.report.summary, ""]
        for table in self.report.tables:
            lines += [f"{self.heading}: {table.title}", "", markdown(table), ""]
        if self.picture:
            lines += [f"![{e.place}: {e.title}]({pictures}{self.picture})", ""]
        for table in e.published:
            lines += [f"The paper: {table.title}", "", markdown(table), ""]
        if e.differences:
            lines += [f"Differences: {e.differences}", ""]
        return "\n".join(lines)


def markdown(table: Table) -> str:
    """Return a table in Markdown.

    >>> print(markdown(Table("t", ("attack", "%"), (("pgd", 1.5),))))
    | attack | % |
    |---|---|
    | pgd | 1.5 |
    """
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    head, rule, *rows = ["|" + "|".join(f" {_text(c)} " for c in line) + "|" for line in lines]
    return "\n".join([head, rule.replace(" ", ""), *rows])


def _text(cell: Cell) -> str:
    text = "" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell)
    return text.replace("|", "\\|")


@standard_defaults()
def reproduce(name: str, setup: Setup | None = None) -> Reproduction:
    """Run an exhibit, such as mm/table-2, and store result.json, result.md and result.svg in the folder `setup.out`.

    >>> reproduce("mm/tabel-2")
    Traceback (most recent call last):
    brinell.errors.InputError: ... Did you mean 'mm/table-2' ...
    """
    exhibit, given = find(name), setup or Setup()
    if exhibit.measure is None:
        raise InputError(
            expected="a table or figure that can be run here",
            got=f"{name}, which cannot be run",
            remedy=f"Missing: {exhibit.missing}",
        )
    given.check(name, exhibit.uses)
    resumed, start = any(given.folder(".").glob("*")), time.perf_counter()
    report = exhibit.measure(given)
    make_folder(given.out)
    picture = _draw(report, given.out)
    result = Reproduction(
        exhibit, report, given.to_json(), command(name, given), time.perf_counter() - start, version(), picture,
        resumed, _run_seconds(given.folder(".")),
    )  # fmt: skip
    write_atomic(given.out / TEXT, result.to_markdown().encode())
    write_atomic(given.out / RESULT, (json.dumps(result.to_json(), indent=1) + "\n").encode())
    return result


def _run_seconds(folder: Path) -> float | None:
    """Return the seconds that all Runs below a folder took; None if there are no Runs, or one cannot be read."""
    try:
        found = [Run.open(path.parent).cost.seconds for path in sorted(folder.rglob(MANIFEST))]
    except BrinellError:  # the result is there and must be stored; only its cost is unknown
        return None
    return sum(found) if found else None


def _draw(report: AnalysisReport, out: Path) -> str | None:
    if not report.figures:
        return None
    from brinell.analysis.plot import plot

    return plot(report, out / PICTURE).name


def command(name: str, setup: Setup) -> str:
    """Return the command that reproduces a result, without the folders of this machine.

    >>> command("mm/table-2", Setup(n=100))
    'brinell reproduce mm/table-2 --n 100'
    """
    default, parts = Setup(), ["brinell", "reproduce", name]
    models = setup.models if setup.models != default.models else ()
    parts += _option("--model", [without_folders(m) for m in models])
    parts += _option("--data", [without_folders(setup.data)] if setup.data != default.data else [])
    parts += _option("--other", [without_folders(o) for o in setup.other])
    for option in ("norm", "eps", "n", "seed", "steps"):
        value = getattr(setup, option)
        parts += _option(f"--{option}", [str(value)] if value != getattr(default, option) else [])
    return shlex.join(parts)


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (name, value)]
