"""The command `brinell curve`: robustness curves."""

import json as json_format
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import interval, make_table, print_lines, print_table
from brinell.core.threat import parse_eps
from brinell.curves import Curve, curve
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Proportion

# The default radii of the table, as multiples of the largest median distance.
MULTIPLES = (0.25, 0.5, 1.0, 2.0)


def command(
    *,
    model: options.Models,
    data: options.Data,
    norm: Annotated[list[str] | None, typer.Option(help="Linf, L2, L1 or L0. Repeat for several; default: L2.")] = None,
    plan: options.Plan = "minimal",
    eps: Annotated[
        list[str] | None, typer.Option(help="A radius for the table and the plot. Repeat for several.")
    ] = None,
    known: Annotated[
        list[Path] | None, typer.Option(help="Reuse a Run of the same --model. Repeat for several.")
    ] = None,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Runs, curves.json and .csv files.")
    ] = None,
    plot: options.Plot = None,
    resume: options.Resume = False,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Measure the smallest perturbation that breaks each sample, and draw the robustness curve."""
    check_plot_path(plot)
    if known and len(model) > 1:
        raise typer.BadParameter(
            "--known needs exactly one --model, because a Run belongs to one model: omit the others."
        )
    radii, norms = [parse_eps(e) for e in eps or ()], norm or ["L2"]
    problem = load.data(data, n, None)
    curves = [
        curve(
            load.model(spec), problem, p, plan, known=known or [], out=None if out is None else out / f"{i}-{p}",
            resume=resume, progress=output.progress, **compute.arguments(),
        )
        for i, spec in enumerate(model)
        for p in norms
    ]  # fmt: skip
    results = [c.to_json() for c in curves]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "curves.json").write_text(json_format.dumps(results))
        for i, c in enumerate(curves):
            c.save(out / f"{i // len(norms)}-{c.norm}.csv")
    if plot is not None:
        curves[0].plot(plot, curves[1:], marks=radii)
    output.print(lambda: results, lambda console: show(curves, radii, console))


def show(curves: list[Curve], radii: list[float], console: Console) -> None:
    """Print one table per norm with the robust errors at the radii, then at which radii the curves of models cross."""
    for norm in dict.fromkeys(c.norm for c in curves):
        of_norm = [c for c in curves if c.norm == norm]
        at = radii or [s * max(c.median for c in of_norm if c.median < float("inf")) for s in MULTIPLES]
        columns = ("model", ">clean error", *(f">eps = {e:.4g}" for e in at), ">median", ">unresolved")
        rows = (
            (c.name, _share(c.clean_error), *(_share(c.at(e)) for e in at), f"{c.median:.4g}", str(c.unresolved))
            for c in of_norm
        )
        print_table(make_table(f"robust error, {norm}, n = {of_norm[0].n}", columns, rows), console)
        print_lines(console, *(str(a.crossings(b)) for a, b in combinations(of_norm, 2)))
    for path in dict.fromkeys(c.path for c in curves):
        console.print(Text(f"Run: {path}"), soft_wrap=True)


def _share(p: Proportion) -> str:
    return f"{100 * p.value:.1f} % {interval(p)}"
