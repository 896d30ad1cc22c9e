"""Print tables, lines, JSON and progress bars."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from brinell.errors import printable

if TYPE_CHECKING:
    from brinell.analysis.across_models import ModelResults
    from brinell.results.analyses import AnalysisReport, Cell

WIDTH, NARROW = 100, 80
# The width of tables in a file or pipe: no cell is wrapped, so that names can be searched for.
UNWRAPPED = 2_000


@runtime_checkable
class Share(Protocol):
    """A share with its 95 % interval, such as a `Proportion` or a mean of proportions."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]] = ()) -> Table:
    """Return a table. A column named ">n" is aligned to the right; a column named "!name" is never wrapped."""
    style = box.ROUNDED if title else box.SIMPLE_HEAD
    table = Table(
        title=Text(printable(title)) if title else None, box=style, pad_edge=bool(title), title_justify="left"
    )
    for name in columns:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(Text(printable(name.lstrip(">!"))), justify=justify, no_wrap=name.startswith("!"))
    for row in rows:
        add_row(table, row)
    return table


def add_row(table: Table, cells: Sequence[str | Text], style: str | None = None) -> None:
    """Add a row of plain text: brackets are not markup, and long words are folded instead of cut off."""
    table.add_row(*(Text(printable(c), overflow="fold") if isinstance(c, str) else c for c in cells), style=style)


def print_report(report: "AnalysisReport", console: Console) -> None:
    """Print the tables of a report, then its summary."""
    for table in report.tables:
        columns = (table.columns[0], *(f">{name}" for name in table.columns[1:])) if table.columns else ()
        rows = ([cell(value) for value in row] for row in table.rows)
        print_table(make_table(table.title, columns, rows), console)
    print_lines(console, report.summary)


def cell(value: "Cell") -> str:
    """Return a cell of a report's table as text; None is empty."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def exit_if_failed(results: "ModelResults[Any]") -> None:
    """Print the models that failed on standard error and exit with code 2; return if no model failed."""
    for m in results.failed:
        Console(stderr=True).print(Text.assemble(("error:", "bold red"), f" {m.model}: {m.error}"), soft_wrap=True)
    if results.failed:
        raise typer.Exit(2)


def print_table(table: Any, console: Console) -> None:
    """Print a table or a panel, at most 100 characters wide; a table in a file or pipe is not wrapped.

    If the variable COLUMNS is set, tables have at most this width in files and pipes too. On a narrow terminal a
    table whose words do not fit is printed as a list of its rows.
    """
    if isinstance(table, Table) and not console.is_terminal and "COLUMNS" not in os.environ:
        Console(file=console.file, width=UNWRAPPED).print(table)
        return
    width = min(console.width, WIDTH)
    if width < NARROW and isinstance(table, Table) and table.show_header and _least_width(table, console) > width:
        _print_rows(table, console, width)
    else:
        console.print(table, width=width)


def _least_width(table: Table, console: Console) -> int:
    """Return the width that the table needs if no word is cut."""
    return Measurement.get(console, console.options.update(width=UNWRAPPED), table).minimum


def _print_rows(table: Table, console: Console, width: int) -> None:
    """Print one paragraph per row: its first cell, then the other columns by name."""
    if table.title:
        console.print(table.title, width=width)
    heads = [str(column.header) for column in table.columns[1:]]
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        named = [f"{head} {value}".strip() for head, value in zip(heads, cells, strict=True) if str(value)]
        console.print(Text(f"{name}: {', '.join(named)}" if named else str(name)), width=width)


def print_lines(console: Console, *lines: str) -> None:
    """Print lines of text: wrapped between words on a terminal, not wrapped in a file or pipe."""
    width = min(console.width, WIDTH) if console.is_terminal else None
    for line in lines:
        console.print(Text(printable(line)), soft_wrap=not console.is_terminal, width=width)


def print_facts(facts: Mapping[str, str], console: Console) -> None:
    """Print one line per fact, with its name and value; facts with an empty value are left out."""
    table = Table("name", "value", show_header=False, box=None)
    for name, value in facts.items():
        if value:
            add_row(table, (name, value))
    print_table(table, console)


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2))


def interval(p: Share, digits: int = 1) -> str:
    """Return the 95 % interval of a share as "[low, high]" in per cent.

    >>> from brinell.results import Proportion
    >>> interval(Proportion(1, 4))
    '[4.6, 69.9]'
    """
    return f"[{100 * p.low:.{digits}f}, {100 * p.high:.{digits}f}]"


def percent(p: Share, digits: int = 1) -> str:
    """Return a share and its 95 % interval as "value [low, high]" in per cent.

    >>> from brinell.results import Proportion
    >>> percent(Proportion(1, 4))
    '25.0 [4.6, 69.9]'
    """
    return f"{100 * p.value:.{digits}f} {interval(p, digits)}"


@contextmanager
def progress_bar(name: str, quiet: bool, download: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar if standard error is a terminal; yield a function (done, total) that updates the bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*(columns if download else ()), console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
