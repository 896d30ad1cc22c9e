"""The command `brinell distances`: distances between the classes of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import print_json
from brinell.core.threat import norm_name, threat
from brinell.curves import distances
from brinell.errors import check_output_paths
from brinell.ops.norms import NORMS
from brinell.report.charts.matplotlib_style import check_plot_path


def command(
    data: options.Data,
    norm: Annotated[
        list[str] | None, typer.Option(help="Linf, L2 or L1. Repeat for several; default: all three.")
    ] = None,
    eps: Annotated[str | None, typer.Option(help="A radius to compare with the distances; needs one --norm.")] = None,
    n: options.N = None,
    plot: options.Plot = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write one line per sample and norm, and the pairs of classes to NAME-pairs.csv."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: cpu.")] = None,
    json: options.Json = False,
) -> None:
    """Measure the distances between samples of different classes, and find duplicates."""
    norms = [norm_name(name) for name in norm or NORMS]
    if eps is not None and len(norms) != 1:
        raise typer.BadParameter("--eps needs exactly one --norm, e.g. --norm Linf --eps 8/255.")
    check_plot_path(plot)
    check_output_paths(csv)
    if csv is not None and csv.suffix != ".csv":
        raise typer.BadParameter(f"--csv takes a file that ends in .csv, not {csv}.")
    result = distances(load.data(data, n, None), norms, device=device, pairs=bool(plot or csv))
    if csv is not None:
        result.save(csv)
    if plot is not None:
        result.plot(plot)
    warning = "" if eps is None else result[norms[0]].beyond(threat(norms[0], eps))
    if json:
        print_json({**result.to_json(), "warning": warning or None})
        return
    typer.echo(str(result))
    if eps is not None:
        typer.echo(warning or f"{norms[0]} eps = {eps} is below half the smallest distance between classes.")
