"""brinell probe."""

import json as json_format
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import put, tell, titled
from brinell.core.threat import threat
from brinell.reliability import Probes, probe
from brinell.reliability.binarization.result import bracketed
from brinell.reliability.probes.experiments import QUERIES
from brinell.reliability.probes.indicators import NEIGHBOURS
from brinell.reliability.probes.probe import SAMPLES
from brinell.results import Proportion

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def command(
    model: options.Model,
    data: options.Data,
    eps: options.Eps,
    norm: options.Norm = "Linf",
    plan: Annotated[str, typer.Option(help="The plan whose attack is probed; see brinell plans.")] = "apgd-ce",
    stage: Annotated[str | None, typer.Option(help="Which attack of the plan; default: its first.")] = None,
    surrogate: Annotated[
        str | None, typer.Option(help="A model to attack instead; what is found is shown to --model.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Samples to look at.")] = SAMPLES,
    neighbours: Annotated[int, typer.Option(help="Random neighbours for the stability of predictions.")] = NEIGHBOURS,
    queries: Annotated[int, typer.Option(help="Passes of the attack without gradients.")] = QUERIES,
    seed: Annotated[int, typer.Option(help="Decides the noise.")] = 0,
    slots: options.Slots = None,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Look for signs that an attack fails for reasons other than robustness; exit code 1 if there are any."""
    found = probe(
        load.model(model),
        load.data(data, n, None),
        threat(norm, eps),
        plan,
        surrogate=None if surrogate is None else load.model(surrogate),
        stage=stage,
        samples=n,
        neighbours=neighbours,
        queries=queries,
        seed=seed,
        slots=slots,
        device=device,
        progress=False if quiet else None,
    )
    if json:
        typer.echo(json_format.dumps(found.to_json(), indent=2))
    else:
        show(found, Console())
    if found.flagged:
        raise typer.Exit(1)


def show(found: Probes, console: Console) -> None:
    """One line per thing looked at, with what to do where it objects."""
    title = f"{found.attack} · {found.samples} samples, {found.broken} broken"
    table = titled(title)
    for name in ("looked at", "", "found"):
        table.add_column(name, no_wrap=name == "looked at")
    for item in found.items:
        advice = f"\n→ {item.remedy}" if item.level != "ok" and item.remedy else ""
        table.add_row(item.name, Text(item.level, COLOURS[item.level]), Text.assemble(item.message, (advice, "bold")))
    put(table, console)
    left = ((radius, Proportion(round(a * found.samples), found.samples)) for radius, a in found.curve)
    curve = ", ".join(f"{radius:.3g}: {bracketed(p)}" for radius, p in left)
    tell(
        console,
        f"accuracy left by radius, n = {found.samples}: {curve}",
        f"cost: {found.forwards:,} forwards, {found.backwards:,} backwards",
        *found.notes,
    )
