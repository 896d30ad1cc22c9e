"""brinell merge."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli.show import show
from brinell.results import merge


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of Runs on different samples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the merged Run.")],
) -> None:
    """Join Runs that evaluated different parts of the data under the same conditions."""
    show(merge(runs, out), Console())
