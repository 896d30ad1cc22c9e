"""brinell merge."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli._shared import options
from brinell.cli._shared.show import as_json, show
from brinell.results import merge


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of Runs on different samples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the merged Run.")],
    json: options.Json = False,
) -> None:
    """Join Runs that evaluated different parts of the data under the same conditions."""
    merged = merge(runs, out)
    if json:
        typer.echo(as_json(merged))
    else:
        show(merged, Console())
