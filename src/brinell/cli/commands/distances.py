"""brinell distances."""

import json as json_format
from typing import Annotated

import typer

from brinell.cli._shared import load, options
from brinell.core.threat import threat
from brinell.curves import distances
from brinell.ops.norms import NORMS


def command(
    data: options.Data,
    norm: Annotated[list[str] | None, typer.Option(help="Linf, L2 or L1; default: all three.")] = None,
    eps: Annotated[str | None, typer.Option(help="A radius to judge, in the one norm given.")] = None,
    n: options.N = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; default: cpu.")] = None,
    json: options.Json = False,
) -> None:
    """Measure how far apart the classes of a data set are: smallest and largest distance, duplicates."""
    norms = norm or list(NORMS)
    if eps is not None and len(norms) != 1:
        raise typer.BadParameter("A radius needs one --norm.")
    found = distances(load.data(data, n, None), norms, device=device)
    told = "" if eps is None else found[norms[0]].beyond(threat(norms[0], eps))
    if json:
        typer.echo(json_format.dumps({**found.to_json(), "warning": told or None}, indent=2))
        return
    typer.echo(str(found))
    if eps is not None:
        typer.echo(told or f"{norms[0]} eps = {eps} is below half the smallest distance between classes.")
