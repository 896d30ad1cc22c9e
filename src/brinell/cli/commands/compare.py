"""The command `brinell compare`: compare two Runs sample by sample."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json
from brinell.report.facts import proportion
from brinell.results import Run, compare


def command(
    a: options.RunFolder,
    b: Annotated[Path, typer.Argument(help="Folder of the Run to compare with.")],
    json: options.Json = False,
) -> None:
    """Compare two Runs sample by sample: agreement, paired difference, McNemar test."""
    result = compare(Run.open(a), Run.open(b))
    if not json:
        typer.echo(str(result))
        return
    difference = result.difference
    print_json(
        {
            "n": result.n,
            "agreement": proportion(result.agreement),
            "robust": [proportion(result.robust_a), proportion(result.robust_b)],
            "difference": {"value": difference.value, "low": difference.low, "high": difference.high},
            "p_value": result.p_value,
            "only_a": [int(i) for i in result.ids_only_a],
            "only_b": [int(i) for i in result.ids_only_b],
        }
    )
