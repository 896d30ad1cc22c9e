"""brinell compare."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import counts
from brinell.results import Run, compare


def command(
    a: options.Folder,
    b: Annotated[Path, typer.Argument(help="Folder of another.")],
    json: options.Json = False,
) -> None:
    """Compare two Runs sample by sample: agreement, paired difference, McNemar test."""
    result = compare(Run.open(a), Run.open(b))
    if not json:
        typer.echo(str(result))
        return
    difference = result.difference
    typer.echo(
        json_format.dumps(
            {
                "n": result.n,
                "agreement": counts(result.agreement),
                "robust": [counts(result.robust_a), counts(result.robust_b)],
                "difference": {"value": difference.value, "low": difference.low, "high": difference.high},
                "p_value": result.p_value,
                "only_a": [int(i) for i in result.ids_only_a],
                "only_b": [int(i) for i in result.ids_only_b],
            }
        )
    )
