"""brinell gallery."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import options
from brinell.cli._shared.pictures import drawable
from brinell.cli._shared.terminal import put, tell, titled
from brinell.defences.measure import SAMPLES, DefenceResult, measure
from brinell.results import Proportion


def command(
    only: Annotated[
        list[str] | None, typer.Option(help="Only this defence, e.g. thermometer; several are allowed.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Samples per defence.")] = SAMPLES,
    seed: options.Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the table: a .svg, .png or .pdf file.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure defences that did not hold, and whether the binarization test catches their evaluations."""
    drawable(plot)
    errors = Console(stderr=True)
    rows = measure(only, n, seed, told=lambda name: None if quiet else errors.print(Text(name)))
    if plot is not None:
        from brinell.defences.plot import plot as draw

        draw(rows, plot)
    if json:
        typer.echo(json_format.dumps([row.to_json() for row in rows], indent=2))
    else:
        show(rows, Console())


def show(rows: Sequence[DefenceResult], console: Console) -> None:
    """One line per defence, then both scores of detectors, then in sentences what the test did not see."""
    title = f"original evaluation → stronger evaluation · n = {rows[0].clean.n}, [95 % intervals]"
    table = titled(title)
    for name in ("defence", "eps", "kappa", "test score (%)", "robust accuracy (%)", "test says"):
        table.add_column(name, justify="left" if name in ("defence", "test says") else "right")
    for row in rows:
        table.add_row(
            row.defence.name,
            f"{row.defence.threat.eps:g}",
            f"{row.original.test.kappa:g}",
            _arrow(row.original.score, row.stronger.score),
            _arrow(row.original.robust, row.stronger.robust),
            row.original.test.verdict,
        )
    put(table, console)
    tell(console, *filter(None, map(_halves, rows)))
    tell(console, *(f"{row.defence.name}: {row.defence.why}" for row in rows if row.defence.why))


def _halves(row: DefenceResult) -> str:
    """Of a detector, whose worse score is in the table, both scores."""
    before, after = row.original.tests, row.stronger.tests
    if len(before) == 1:
        return ""
    each = (f"{kind} test {_arrow(t.level.score, after[kind].level.score)}" for kind, t in before.items())
    return f"{row.defence.name}: {', '.join(each)}"


def _arrow(a: Proportion, b: Proportion) -> str:
    return f"{_share(a)} → {_share(b)}"


def _share(p: Proportion) -> str:
    if not p.n:
        return "–"
    return f"{100 * p.value:.0f} [{100 * p.low:.0f}, {100 * p.high:.0f}]"
