"""The command `brinell compare`: compare two Runs sample by sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json, print_lines
from brinell.errors import InputError
from brinell.report.facts import proportion
from brinell.report.formats import comparison_table
from brinell.report.text_tables import as_markdown_table, comparison_as_latex, known_format
from brinell.results import Comparison, Run, compare

BOTH = 2
FORMATS: dict[str, Callable[[Comparison, str | None], str]] = {
    "text": lambda c, label: str(c),
    "md": lambda c, label: as_markdown_table(comparison_table(c)),
    "tex": comparison_as_latex,
}


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of the two Runs, A and B.", metavar="A B")],
    format: Annotated[str, typer.Option(help="text, md (Markdown table) or tex (LaTeX table, also latex).")] = "text",
    label: Annotated[
        str | None, typer.Option(help="End of the label of the LaTeX table; default: the names of both models.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare two Runs sample by sample: agreement, paired difference, McNemar test."""
    if len(runs) != BOTH:
        raise InputError(
            expected="two Runs, A and B",
            got=f"{len(runs)}",
            remedy=f"To compare several, two by two: brinell report {' '.join(map(str, runs))}.",
        )
    result = compare(*map(Run.open, runs))
    format = known_format(format, FORMATS)
    made = FORMATS[format](result, label)
    if not json:
        if format == "text":
            print_lines(Console(), *made.splitlines())
        else:
            typer.echo(made, nl=False)
        return
    difference = result.difference
    print_json(
        {
            "n": result.n,
            "agreement": proportion(result.agreement),
            "robust": [proportion(result.robust_a), proportion(result.robust_b)],
            "certified": [None if p is None else proportion(p) for p in result.certified],
            "difference": {"value": difference.value, "low": difference.low, "high": difference.high},
            "p_value": result.p_value,
            "verdicts": list(result.verdicts),
            "only_a": [int(i) for i in result.ids_only_a],
            "only_b": [int(i) for i in result.ids_only_b],
        }
    )
