"""Write a report of Runs as text or as a file."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from brinell.errors import InputError
from brinell.report.document import document
from brinell.report.examples import SampleSource
from brinell.report.formats import as_csv, as_json, as_junit, as_latex, as_markdown
from brinell.report.model_card import as_model_card
from brinell.report.text_tables import accuracies_as_latex, known_format
from brinell.results import Run
from brinell.storage import write_output

ENDINGS = {
    ".html": "html", ".htm": "html", ".md": "md", ".tex": "tex", ".json": "json", ".csv": "csv", ".xml": "junit",
    ".junit": "junit",
}  # fmt: skip
PLAIN: dict[str, Callable[[Sequence[Run]], str]] = {
    "md": as_markdown, "json": as_json, "csv": as_csv, "model-card": as_model_card,
}  # fmt: skip
LATEX: dict[str, Callable[[Sequence[Run], str | None], str]] = {"tex": as_latex, "tex-table": accuracies_as_latex}
FORMATS = ("html", *PLAIN, *LATEX, "junit")


def text(
    runs: Sequence[Run],
    format: str = "html",
    *,
    problem: SampleSource | None = None,
    classes: Sequence[str] = (),
    title: str = "",
    fail_under: float | None = None,
    require: str | None = None,
    label: str | None = None,
) -> str:
    """Return the report of Runs as text in one of the `FORMATS`: "tex-table" is the first table of "tex".

    `fail_under` and `require` are the release gate of JUnit reports; see `brinell.report.gate.check_gate`. The labels
    of LaTeX tables end in `label`, by default in models, data, threats and plans.

    >>> text([Run.open("tests/results/golden_run_v1")], "md").splitlines()[0]
    '| run | threat | plan | clean accuracy | robust accuracy | verdict |'
    """
    if not runs:
        raise InputError(expected="at least one Run", got="none", remedy="Pass a Run or its folder.")
    format = known_format(format, FORMATS)
    if problem is not None and not isinstance(problem, SampleSource):
        raise InputError(
            expected="the data of the Runs as a Problem",
            got=type(problem).__name__,
            remedy="Pass problem=brinell.Problem(x, y).",
        )
    if format == "html":
        return document(runs, problem, classes, title)
    if format in LATEX:
        return LATEX[format](runs, label)
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
    """Write the report of one or several Runs to a file, whose ending gives the default format; return its path.

    `problem` is the data of the Runs; if given, the page shows clean inputs beside adversarials. `classes` are class
    names.
    """
    path = Path(path)
    many = [runs] if isinstance(runs, Run) else list(runs)
    made = text(many, format or format_of(path), problem=problem, classes=classes, title=title)
    return save(path, made)


def save(path: Path, made: str) -> Path:
    """Write the text of a report to a file and return its path."""
    write_output(path, made)
    return path


def format_of(path: Path) -> str:
    """Return the report format for the ending of a file; raise an InputError for an unknown ending.

    >>> format_of(Path("report.xml"))
    'junit'
    """
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            expected=f"a file that ends in {', '.join(ENDINGS)}",
            got=path.name,
            remedy="Use one of these endings, or pass format= (--format).",
        )
    return ENDINGS[path.suffix.lower()]
