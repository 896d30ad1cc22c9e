"""brinell submit."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.results import Run
from brinell.verification.bundle import pack


def command(
    run: options.Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle to write, e.g. mine.zip.")],
    json: options.Json = False,
) -> None:
    """Pack a finished Run into one file that others can check with brinell verify."""
    root = pack(Run.open(run), out)
    if json:
        typer.echo(json_format.dumps({"bundle": str(out), "bytes": out.stat().st_size, "root": root}))
    else:
        typer.echo(f"{out}: {out.stat().st_size:,} bytes, root hash {root}")
