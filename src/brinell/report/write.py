"""Reports as files."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from brinell.errors import InputError, one_of
from brinell.report.document import document
from brinell.report.examples import SampleSource
from brinell.report.formats import as_csv, as_json, as_junit, as_markdown
from brinell.results import Run

ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".csv": "csv", ".xml": "junit"}
PLAIN: dict[str, Callable[[Sequence[Run]], str]] = {"md": as_markdown, "json": as_json, "csv": as_csv}
FORMATS = ("html", *PLAIN, "junit")


def text(
    runs: Sequence[Run],
    format: str = "html",
    *,
    problem: SampleSource | None = None,
    classes: Sequence[str] = (),
    title: str = "",
    fail_under: float | None = None,
    require: str | None = None,
) -> str:
    """The report of one or several Runs in a format: html, md, json, csv or junit.

    `fail_under` and `require` are what JUnit's cases ask of the Runs; see `brinell.report.gate.objections`.

    >>> text([Run.open("tests/results/golden_run_v1")], "md").splitlines()[0]
    '| run | threat | plan | clean accuracy | robust accuracy | verdict |'
    """
    if not runs:
        raise InputError(expected="at least one Run", got="none", remedy="Name the folder of a Run.")
    one_of("a format", format, FORMATS)
    if problem is not None and not hasattr(problem, "chunks"):
        raise InputError(
            expected="the data of the Runs as a Problem",
            got=type(problem).__name__,
            remedy="Pass problem=brinell.Problem(x, y).",
        )
    if format == "html":
        return document(runs, problem, classes, title)
    return as_junit(runs, fail_under, require) if format == "junit" else PLAIN[format](runs)


def write(
    runs: Run | Sequence[Run],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    problem: SampleSource | None = None,
    classes: Sequence[str] = (),
    title: str = "",
) -> Path:
    """Write the report of one or several Runs into a file; its ending tells the format where none is given.

    `problem` is the data the Runs were made from, for the originals in the gallery; `classes` are names of the classes.
    """
    path = Path(path)
    many = [runs] if isinstance(runs, Run) else list(runs)
    made = text(many, format or format_of(path), problem=problem, classes=classes, title=title)
    return save(path, made)


def save(path: Path, made: str) -> Path:
    """Write a report that was made, or say why that is not possible."""
    try:
        path.write_text(made, encoding="utf-8")
    except OSError as error:
        raise InputError(
            expected="a file that can be written", got=f"{path} ({error.strerror})", remedy="Make its folder first."
        ) from error
    return path


def format_of(path: Path) -> str:
    """The format that a file's ending stands for.

    >>> format_of(Path("report.xml"))
    'junit'
    """
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            expected=f"a file named {', '.join(ENDINGS)}",
            got=path.name,
            remedy="Give it one of these endings, or --format.",
        )
    return ENDINGS[path.suffix.lower()]
