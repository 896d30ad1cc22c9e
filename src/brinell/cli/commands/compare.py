"""The command `brinell compare`: compare two Runs sample by sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json
from brinell.errors import one_of
from brinell.report.facts import proportion
from brinell.report.formats import comparison_table
from brinell.report.text_tables import as_latex_table, as_markdown_table
from brinell.results import Comparison, Run, compare

FORMATS: dict[str, Callable[[Comparison], str]] = {
    "text": str,
    "md": lambda c: as_markdown_table(comparison_table(c)),
    "tex": lambda c: as_latex_table(comparison_table(c)),
}


def command(
    a: options.RunFolder,
    b: Annotated[Path, typer.Argument(help="Folder of the Run to compare with.")],
    format: Annotated[str, typer.Option(help="text, md (Markdown table) or tex (LaTeX table).")] = "text",
    json: options.Json = False,
) -> None:
    """Compare two Runs sample by sample: agreement, paired difference, McNemar test."""
    result = compare(Run.open(a), Run.open(b))
    made = FORMATS[one_of("a format", format, FORMATS)](result)
    if not json:
        typer.echo(made.rstrip("\n"))
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
            "only_a": [int(i) for i in result.ids_only_a],
            "only_b": [int(i) for i in result.ids_only_b],
        }
    )
