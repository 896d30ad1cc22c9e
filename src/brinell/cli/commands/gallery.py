"""The command `brinell gallery`: broken defences and the binarization test."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import options
from brinell.cli._shared.terminal import make_table, percent, print_lines, print_table
from brinell.defences.catalogue import DEFENCES
from brinell.defences.measure import SAMPLES, DefenceResult, measure
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Proportion


def show_defences(console: Console) -> None:
    """Print the name, the paper and the original and stronger evaluation of every defence."""
    rows = [(d.name, d.imitates, d.original.how, d.stronger.how) for d in DEFENCES]
    print_table(make_table("", ("!defence", "imitates", "original evaluation", "stronger evaluation"), rows), console)
    print_lines(console, "Measure one: brinell gallery --only NAME.")


def command(
    *,
    list: Annotated[bool, options.listing(show_defences, "List the defences; measure nothing.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this defence, e.g. thermometer. Repeat for several.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Samples per defence.")] = SAMPLES,
    seed: options.Seed = 0,
    plot: options.Plot = None,
    output: options.PrintFlags,
) -> None:
    """Measure broken defences, and whether the binarization test rejects their original evaluations."""
    check_plot_path(plot)
    errors = Console(stderr=True)
    rows = measure(only, n, seed, on_start=lambda name: None if output.quiet else errors.print(Text(name)))
    if plot is not None:
        from brinell.defences.plot import plot as draw

        draw(rows, plot)
    output.print(lambda: [row.to_json() for row in rows], lambda console: show(rows, console))


def show(rows: Sequence[DefenceResult], console: Console) -> None:
    """Print one line per defence, the scores of detectors in both tests, and why the test misses some defences."""
    columns = ("defence", ">eps", ">kappa", ">test score (%)", ">robust accuracy (%)", "test says")
    cells = (
        (
            row.defence.name,
            f"{row.defence.threat.eps:g}",
            f"{row.original.test.kappa:g}",
            _arrow(row.original.score, row.stronger.score),
            _arrow(row.original.robust, row.stronger.robust),
            row.original.test.verdict,
        )
        for row in rows
    )
    title = f"original evaluation → stronger evaluation · n = {rows[0].clean.n}, [95 % intervals]"
    print_table(make_table(title, columns, cells), console)
    print_lines(console, *filter(None, map(_both_scores, rows)))
    print_lines(console, *(f"{row.defence.name}: {row.defence.why}" for row in rows if row.defence.why))


def _both_scores(row: DefenceResult) -> str:
    """Return a detector's scores in the regular and the inverted test; "" for a defence without a detector."""
    before, after = row.original.tests, row.stronger.tests
    if len(before) == 1:
        return ""
    scores = (f"{kind} test {_arrow(t.level.score, after[kind].level.score)}" for kind, t in before.items())
    return f"{row.defence.name}: {', '.join(scores)}"


def _arrow(a: Proportion, b: Proportion) -> str:
    return " → ".join(percent(p, 0) if p.n else "–" for p in (a, b))
