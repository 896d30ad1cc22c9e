"""The command `brinell reproduce`: repeat a table or figure of a paper."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli._shared import options
from brinell.cli._shared.terminal import cell, make_table, print_lines, print_table
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.reproduce import Reproduction, Setup, exhibits, reproduce
from brinell.reproduce.catalogue import PAPERS
from brinell.reproduce.run import PICTURE
from brinell.reproduce.setup import DEMO, DEMO_EPS
from brinell.results.analyses import Table


def command(
    *,
    name: Annotated[
        str | None, typer.Argument(help="A table or figure, e.g. mm/table-2; default: list all tables and figures.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="As for brinell evaluate, or NAME=MODEL. Can be repeated.")
    ] = None,
    data: options.Data = DEMO,
    other: Annotated[
        list[str] | None, typer.Option(help="Further data, as DATA or NAME=DATA. Repeat for several.")
    ] = None,
    eps: options.Eps = DEMO_EPS,
    norm: options.Norm = "Linf",
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for tables, pictures and Runs; default: reproduced/NAME.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Largest number of attack steps, for figures over iterations."),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    output: options.PrintFlags,
) -> None:
    """Reproduce a table or figure of one of five papers with the models and data at hand."""
    if name is None:
        output.print(_all_as_json, show_all)
        return
    folder = out if out is not None else Path("reproduced") / name.replace("/", "-")
    check_plot_path(Path(PICTURE))
    setup = Setup(
        tuple(model or (DEMO,)), data, norm, eps, n, tuple(other or ()), seed, device, steps, folder, output.progress
    )
    result = reproduce(name, setup)
    output.print(result.to_json, lambda console: show(result, folder, console))


def _all_as_json() -> list[dict[str, object]]:
    return [
        {
            "name": e.name,
            "place": e.place,
            "title": e.title,
            "needs": e.needs,
            "cost": e.cost,
            "missing": e.missing,
            "source": e.source,
            "options": list(e.uses),
        }
        for e in exhibits()
    ]


def show_all(console: Console) -> None:
    """Print one table per paper with the names, needs and costs of its tables and figures."""
    for short, paper in PAPERS.items():
        rows = [
            (e.name, e.title, e.needs if e.measure else f"cannot be run: {e.missing}", e.cost) for e in exhibits(short)
        ]
        print_table(make_table(paper, ("!name", "what it shows", "the paper's own needs", "cost"), rows), console)
    print_lines(console, "Run one: brinell reproduce NAME --model MODEL --data DATA --eps EPS.")


def show(result: Reproduction, folder: Path, console: Console) -> None:
    """Print the measured tables, then the tables of the paper, and the folder of the files."""
    for table in result.report.tables:
        _print(f"{result.heading.lower()}: {table.title}", table, console)
    for table in result.exhibit.published:
        _print(f"the paper: {table.title}", table, console)
    difference = f"Differences: {result.exhibit.differences}" if result.exhibit.differences else ""
    print_lines(console, *filter(None, (result.report.summary, difference, f"Files: {folder}")))


def _print(title: str, table: Table, console: Console) -> None:
    numeric = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    columns = [f">{name}" if right else name for name, right in zip(table.columns, numeric, strict=True)]
    print_table(make_table(title, columns, ([cell(c) for c in row] for row in table.rows)), console)
