"""The command `brinell merge`: merge Runs on parts of the data."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.run_output import output_run
from brinell.results import merge


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of Runs on different samples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the merged Run.")],
    json: options.Json = False,
) -> None:
    """Merge Runs with the same model, threat and plan on different parts of the data."""
    output_run(merge(runs, out), options.PrintFlags(json=json))
