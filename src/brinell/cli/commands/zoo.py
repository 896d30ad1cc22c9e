"""brinell zoo."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import put_facts
from brinell.models import zoo
from brinell.models.zoo import Card

app = typer.Typer(no_args_is_help=True, help="Published models by name: list, show, fetch and check them.")

Names = Annotated[
    list[str], typer.Argument(help="Models as data/threat/model; the last part alone where it is unique.")
]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _state(card: Card) -> str:
    if not card.loadable:
        return "no"
    return "in cache" if all(zoo.place(card, i).exists() for i in range(len(card.files))) else "yes"


@app.command("list")
def list_(
    data: Annotated[
        str | None, typer.Option(help="Only models of this data set: cifar10, cifar100, imagenet …")
    ] = None,
    threat: Annotated[str | None, typer.Option(help="Only models for this threat: Linf, L2, corruptions.")] = None,
    loadable: Annotated[bool, typer.Option("--loadable", help="Only models that can be loaded.")] = False,
    json: options.Json = False,
) -> None:
    """List the models, the most robust first."""
    found = [
        c
        for c in zoo.cards().values()
        if (data is None or c.data == data) and (threat is None or c.threat == threat) and (c.loadable or not loadable)
    ]
    found.sort(key=lambda c: (c.data, c.threat, -_robust(c)))
    if json:
        typer.echo(json_format.dumps([asdict(c) for c in found], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for column in ("clean %", "robust %"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("architecture")
    table.add_column("loads", no_wrap=True)
    for c in found:
        robust = c.robust_accuracy if c.best_known is None else c.best_known
        table.add_row(c.name, _percent(c.clean_accuracy), _percent(robust), Text(c.architecture), _state(c))
    Console().print(table)


def _robust(card: Card) -> float:
    return card.best_known or card.robust_accuracy or 0.0


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A model as data/threat/model.")], json: options.Json = False
) -> None:
    """Show the card of a model."""
    card = zoo.find(name)
    if json:
        typer.echo(json_format.dumps(asdict(card), indent=2))
        return
    facts = {
        "model": card.name,
        "paper": f"{card.paper} ({card.venue})" if card.paper else card.venue,
        "licence": card.licence,
        "architecture": card.architecture,
        "network": json_format.dumps(card.network) if card.network else f"none: {card.missing}",
        "preprocessing": card.preprocessing or "",
        "eps": card.eps or "",
        "clean accuracy, %": _percent(card.clean_accuracy),
        "robust accuracy, %": _percent(card.robust_accuracy),
        "best known attack, %": _percent(card.best_known),
        "AutoAttack's warnings": "raised" if card.unreliable else "",
        "network compared by": card.evidence,
        "extra data": "yes" if card.extra_data else "no",
        "cannot be loaded": card.unloadable,
        "sources": ", ".join(s for f in card.files for s in f.sources),
        "place in the cache": ", ".join(str(zoo.place(card, i)) for i in range(len(card.files))),
    }
    put_facts(facts, Console())


@app.command("fetch")
def fetch(names: Names, quiet: options.Quiet = False) -> None:
    """Fetch the weights of models into the cache, and check them."""
    for card in [zoo.find(name) for name in names]:
        for path in _fetched(card, quiet):
            typer.echo(str(path))


def _fetched(card: Card, quiet: bool) -> list[Path]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task(card.name, total=None)
        return zoo.fetch(card, lambda done, total: bar.update(task, completed=done, total=total))


@app.command("check")
def check(
    names: Names,
    data: options.Data,
    n: options.N = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Compare the clean accuracy of models with the published one; exit code 1 where they differ."""
    problem = load.data(data, n, None)
    cards = [zoo.find(name) for name in names]
    results = [zoo.check(zoo.load(c.name, device=device), problem, c.clean_accuracy) for c in cards]
    if json:
        typer.echo(json_format.dumps([{**asdict(r), "ok": r.ok} for r in results], indent=2))
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("model", overflow="fold")
        for column in ("n", "clean %", "published %", "may differ by"):
            table.add_column(column, justify="right")
        table.add_column("")
        for r in results:
            word = ("agrees", "green") if r.ok else ("differs", "red")
            numbers = (str(r.n), _percent(r.accuracy), _percent(r.published), _percent(r.margin))
            table.add_row(r.name, *numbers, Text(*word))
        Console().print(table)
    if not all(r.ok for r in results):
        raise typer.Exit(1)
