"""brinell curve."""

import json as json_format
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.pictures import drawable
from brinell.cli._shared.terminal import put, tell, titled
from brinell.core.threat import parse_eps
from brinell.curves import Curve, curve

# Radii of the table where none are given: shares of the largest median distance.
SHARES = (0.25, 0.5, 1.0, 2.0)


def command(
    model: Annotated[list[str], typer.Option("--model", "-m", help="As in evaluate; several for a comparison.")],
    data: options.Data,
    norm: Annotated[
        list[str] | None, typer.Option(help="Linf, L2, L1 or L0; several are allowed. Default: L2.")
    ] = None,
    plan: options.Plan = "minimal",
    eps: Annotated[
        list[str] | None, typer.Option(help="A radius for the table and a dashed line; several are allowed.")
    ] = None,
    known: Annotated[
        list[Path] | None, typer.Option(help="A Run of the same model to reuse; several are allowed.")
    ] = None,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for Runs, curves.json and .csv files.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves: a .svg, .png or .pdf file.")] = None,
    resume: options.ResumeAll = False,
    seed: options.Seed = 0,
    slots: options.Slots = None,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure at which distance each sample breaks, and draw the robustness curve."""
    drawable(plot)
    radii = [parse_eps(e) for e in eps or ()]
    problem = load.data(data, n, None)
    curves = [
        curve(
            load.model(spec), problem, p, plan, known=_mine(known, len(model)),
            out=None if out is None else out / f"{i}-{p}", resume=resume, seed=seed, slots=slots, device=device,
            progress=False if quiet else None,
        )
        for i, spec in enumerate(model)
        for p in norm or ["L2"]
    ]  # fmt: skip
    report = [c.to_json() for c in curves]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "curves.json").write_text(json_format.dumps(report))
        for i, c in enumerate(curves):
            c.save(out / f"{i // len(norm or ['L2'])}-{c.norm}.csv")
    if plot is not None:
        curves[0].plot(plot, curves[1:], marks=radii)
    if json:
        typer.echo(json_format.dumps(report, indent=2))
    else:
        show(curves, radii, Console())


def _mine(known: list[Path] | None, models: int) -> list[Path]:
    if known and models > 1:
        raise typer.BadParameter("Runs belong to one model: give one --model with --known.")
    return known or []


def show(curves: list[Curve], radii: list[float], console: Console) -> None:
    """One table per norm: robust errors at the radii, with intervals; then how the models compare."""
    for norm in dict.fromkeys(c.norm for c in curves):
        mine = [c for c in curves if c.norm == norm]
        at = radii or [s * max(c.median for c in mine if c.median < float("inf")) for s in SHARES]
        table = titled(f"robust error, {norm}, n = {mine[0].n}")
        for name in ("model", "clean error", *(f"eps = {e:.4g}" for e in at), "median", "unresolved"):
            table.add_column(name, justify="left" if name == "model" else "right")
        for c in mine:
            cells = (
                c.name,
                _share(c.clean_error),
                *(_share(c.at(e)) for e in at),
                f"{c.median:.4g}",
                str(c.unresolved),
            )
            table.add_row(*map(Text, cells))
        put(table, console)
        for a, b in combinations(mine, 2):
            tell(console, str(a.crossings(b)))
    for path in dict.fromkeys(c.path for c in curves):
        console.print(Text(f"Run: {path}"), soft_wrap=True)


def _share(p: Any) -> str:
    return f"{100 * p.value:.1f} % [{100 * p.low:.1f}, {100 * p.high:.1f}]"
