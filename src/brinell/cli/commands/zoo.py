"""The command `brinell zoo`: published models by name."""

import json as json_format
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import make_table, print_facts, print_json, print_table, progress_bar
from brinell.models import zoo
from brinell.models.zoo import Card

app = typer.Typer(no_args_is_help=True, help="List, show, download and check published models.")

Names = Annotated[list[str], typer.Argument(help="Models as data/threat/model, or only the last part if it is unique.")]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _state(card: Card) -> str:
    if not card.loadable:
        return "no"
    return "in cache" if all(zoo.place(card, i).exists() for i in range(len(card.files))) else "yes"


def _licence(card: Card) -> Text:
    return Text(card.licence, "bold red" if card.restriction else "")


def _print_restrictions(cards: Iterable[Card]) -> None:
    """Print on standard error which of the models forbid commercial use."""
    for card in cards:
        if card.restriction:
            Console(stderr=True).print(Text.assemble(("warning:", "bold red"), f" {card.restriction}"), soft_wrap=True)


@app.command("list")
def list_(
    data: Annotated[
        str | None, typer.Option(help="Only models of this data set: cifar10, cifar100, imagenet, …")
    ] = None,
    threat: Annotated[str | None, typer.Option(help="Only models for this threat: Linf, L2, corruptions.")] = None,
    loadable: Annotated[bool, typer.Option("--loadable", help="Only models that can be loaded.")] = False,
    json: options.Json = False,
) -> None:
    """List the published models, the most robust first."""
    cards = [
        c
        for c in zoo.cards().values()
        if (data is None or c.data == data) and (threat is None or c.threat == threat) and (c.loadable or not loadable)
    ]
    cards.sort(key=lambda c: (c.data, c.threat, -_robust(c)))
    if json:
        print_json([asdict(c) for c in cards])
        return
    best = (c.robust_accuracy if c.best_known is None else c.best_known for c in cards)
    rows = (
        (c.name, _percent(c.clean_accuracy), _percent(robust), c.architecture, _licence(c), _state(c))
        for c, robust in zip(cards, best, strict=True)
    )
    columns = ("model", ">clean %", ">robust %", "architecture", "licence", "!loads")
    print_table(make_table("", columns, rows), Console())
    _print_restrictions(cards)


def _robust(card: Card) -> float:
    return card.best_known or card.robust_accuracy or 0.0


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A model as data/threat/model.")], json: options.Json = False
) -> None:
    """Show a model's card: paper, network, published accuracies, files."""
    card = zoo.find(name)
    if json:
        print_json(asdict(card))
        return
    facts = {
        "model": card.name,
        "title": card.title,
        "authors": card.authors,
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
        "note": _without_links(card.footnote),
        "cannot be loaded": card.unloadable,
        "sources": ", ".join(s for f in card.files for s in f.sources),
        "files in the cache": ", ".join(str(zoo.place(card, i)) for i in range(len(card.files))),
    }
    print_facts(facts, Console())
    _print_restrictions([card])


def _without_links(footnote: str) -> str:
    return re.sub(r"<[^>]*>", "", footnote)


@app.command("fetch")
def fetch(names: Names, quiet: options.Quiet = False) -> None:
    """Download the weights of models into the cache, and check them."""
    for card in [zoo.find(name) for name in names]:
        with progress_bar(card.name, quiet, download=True) as update:
            paths = zoo.fetch(card, update)
        typer.echo("\n".join(map(str, paths)))
        _print_restrictions([card])


@app.command("check")
def check(
    names: Names, data: options.Data, n: options.N = None, device: options.Device = None, json: options.Json = False
) -> None:
    """Measure the clean accuracy of models; exit code 1 if an accuracy differs from the published one."""
    problem = load.data(data, n, None)
    cards = [zoo.find(name) for name in names]
    results = [zoo.check(zoo.load(c.name, device=device), problem, c.clean_accuracy) for c in cards]
    if json:
        print_json([{**asdict(r), "ok": r.ok} for r in results])
    else:
        marks = {True: Text("agrees", "green"), False: Text("differs", "red")}
        rows = (
            (r.name, str(r.n), _percent(r.accuracy), _percent(r.published), _percent(r.margin), marks[r.ok])
            for r in results
        )
        columns = ("model", ">n", ">clean %", ">published %", ">tolerance", "")
        print_table(make_table("", columns, rows), Console())
    if not all(r.ok for r in results):
        raise typer.Exit(1)
