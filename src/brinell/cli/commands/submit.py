"""The command `brinell submit`: pack a Run into one file."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json
from brinell.results import Run
from brinell.verification.bundle import pack


def command(
    run: options.RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write, e.g. mine.zip.")],
    json: options.Json = False,
) -> None:
    """Pack a finished Run into one file that others check with brinell verify."""
    root = pack(Run.open(run), out)
    size = out.stat().st_size
    if json:
        print_json({"bundle": str(out), "bytes": size, "root": root})
    else:
        typer.echo(f"{out}: {size:,} bytes, root hash {root}")
