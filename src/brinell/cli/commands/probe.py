"""The command `brinell probe`: search for signs of a failed attack."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import interval, make_table, print_lines, print_table
from brinell.reliability import Probes, probe
from brinell.reliability.probes.experiments import QUERIES
from brinell.reliability.probes.indicators import NEIGHBOURS
from brinell.reliability.probes.probe import SAMPLES
from brinell.results import Proportion

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def command(
    *,
    target: options.TargetFlags,
    plan: Annotated[str, typer.Option(help="Plan of the attack to probe. brinell plans lists all plans.")] = "apgd-ce",
    stage: Annotated[str | None, typer.Option(help="Attack of the plan to probe; default: the first attack.")] = None,
    surrogate: Annotated[
        str | None, typer.Option(help="Attack this model instead of --model, and test its adversarials on --model.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "--n-examples", help=f"Samples to attack; default: {SAMPLES}.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="Random neighbours per sample to test if predictions are stable.")] = (
        NEIGHBOURS
    ),
    queries: Annotated[int, typer.Option(help="Query limit of the attack without gradients.")] = QUERIES,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Search for signs that an attack fails for reasons other than robustness; exit code 1 if a sign is found."""
    result = probe(
        *target.load(n), plan, surrogate=None if surrogate is None else load.model(surrogate), stage=stage,
        samples=SAMPLES if n is None else n,
        neighbours=neighbours, queries=queries, progress=output.progress, **compute.arguments(),
    )  # fmt: skip
    output.print(result.to_json, lambda console: show(result, console))
    if result.flagged:
        raise typer.Exit(1)


def show(result: Probes, console: Console) -> None:
    """Print one line per finding, with its remedy unless its level is ok, then the robust accuracy by radius."""
    rows = []
    for item in result.items:
        advice = f"\n→ {item.remedy}" if item.level != "ok" and item.remedy else ""
        level = Text(item.level, COLOURS[item.level])
        rows.append((item.name, level, Text.assemble(item.message, (advice, "bold"))))
    title = f"{result.attack} · {result.samples} samples, {result.broken} broken"
    print_table(make_table(title, ("!probe", "", "finding"), rows), console)
    shares = ((radius, Proportion(round(a * result.samples), result.samples)) for radius, a in result.curve)
    curve = ", ".join(f"{radius:.3g}: {100 * p.value:.1f} % {interval(p)}" for radius, p in shares)
    print_lines(
        console,
        f"robust accuracy by radius, n = {result.samples}: {curve}",
        f"cost: {result.forwards:,} forward and {result.backwards:,} backward passes",
        *result.notes,
    )
