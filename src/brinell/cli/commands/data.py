"""brinell data."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from brinell import data
from brinell.cli._shared import options
from brinell.cli._shared.terminal import put_facts
from brinell.data.check import state
from brinell.data.images import BENCHMARK
from brinell.data.sets import Set, find

app = typer.Typer(no_args_is_help=True, help="Data sets by name: list, show, fetch and check them.")

Name = Annotated[str, typer.Argument(help="A data set, e.g. cifar10.")]
Names = Annotated[list[str], typer.Argument(help="Data sets, e.g. cifar10 mnist.")]


def _card(s: Set) -> dict[str, Any]:
    parts = s.layout.choices()
    return {
        "name": s.name,
        "title": s.title,
        "paper": s.paper,
        "classes": s.classes,
        "images": dict(s.sizes),
        "options": list(s.layout.options),
        "corruptions": list(dict.fromkeys(c.corruption for c in parts if c.corruption)),
        "preprocessing": s.preprocessing if "preprocessing" in s.layout.options else None,
        "files": [asdict(f) for f in s.files],
        "fetched_when_loaded": s.automatic,
        "by_hand": s.by_hand,
        "place": str(data.place(s.name)),
        "cache": state(s.name),
    }


@app.command("list")
def list_(json: options.Json = False) -> None:
    """List the data sets, and how much of each the cache has."""
    if json:
        typer.echo(json_format.dumps([_card(s) for s in data.SETS.values()], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("data set", no_wrap=True)
    for column in ("classes", "images"):
        table.add_column(column, justify="right")
    table.add_column("options")
    table.add_column("in cache", no_wrap=True)
    for s in data.SETS.values():
        images = ", ".join(f"{n:,} {part}" for part, n in s.sizes.items())
        table.add_row(s.name, f"{s.classes}", images, ", ".join(s.layout.options), state(s.name))
    Console().print(table)


@app.command("show")
def show(name: Name, json: options.Json = False) -> None:
    """Show what is known of a data set: its parts, its sources, its place in the cache."""
    s = find(name)
    if json:
        typer.echo(json_format.dumps(_card(s), indent=2))
        return
    card = _card(s)
    facts = {
        "data set": s.title,
        "paper": s.paper,
        "classes": str(s.classes),
        "images": ", ".join(f"{n:,} {part}" for part, n in s.sizes.items()),
        "options": ", ".join(s.layout.options),
        "corruptions": ", ".join(card["corruptions"]),
        "preprocessing": card["preprocessing"] or "",
        "benchmark's list, sha256": BENCHMARK if "paths" in s.layout.options else "",
        "sources": "\n".join(f"{' or '.join(f.sources)} ({f.digest or 'digest unknown'})" for f in s.files),
        "fetched when loaded": "yes" if s.automatic else "no",
        "by hand": s.by_hand,
        "place in the cache": str(data.place(name)),
        "in cache": card["cache"],
    }
    put_facts(facts, Console())


@app.command("fetch")
def fetch(names: Names, quiet: options.Quiet = False) -> None:
    """Fetch data sets into the cache, check and unpack them."""
    for s in [find(name) for name in names]:
        typer.echo(str(_fetched(s, quiet)))


def _fetched(s: Set, quiet: bool) -> Path:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task(s.name, total=None)
        return data.fetch(s.name, lambda done, total: bar.update(task, completed=done, total=total))


@app.command("check")
def check(
    name: Name,
    root: Annotated[Path | None, typer.Option(help="A folder that has the data set; default: the cache.")] = None,
    json: options.Json = False,
) -> None:
    """Read every part of a data set and count it; exit code 1 where it is not as published."""
    results = data.check(name, root)
    if json:
        typer.echo(json_format.dumps([{**asdict(r), "ok": r.ok} for r in results], indent=2))
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("part", no_wrap=True)
        for column in ("images", "published"):
            table.add_column(column, justify="right")
        table.add_column("", overflow="fold")
        for r in results:
            word = Text("as published", "green") if r.ok else Text(r.trouble, "red")
            table.add_row(r.name, "" if r.n is None else f"{r.n:,}", f"{r.published:,}", word)
        Console().print(table)
    if not all(r.ok for r in results):
        raise typer.Exit(1)
