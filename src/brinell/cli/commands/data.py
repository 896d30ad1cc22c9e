"""The command `brinell data`: data sets by name."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from brinell import data
from brinell.cli._shared import options
from brinell.cli._shared.terminal import make_table, print_facts, print_json, print_table, progress_bar
from brinell.core.dataset import Problem, numbered
from brinell.data.catalogue import DataSet, find
from brinell.data.check import state
from brinell.data.image_folders import LIST_DIGEST
from brinell.data.load import FOLDER, NPZ
from brinell.evaluation.coerce import as_problem, data_options

app = typer.Typer(no_args_is_help=True, help="List, show, download and check data sets.")

Name = Annotated[str, typer.Argument(help="A data set, e.g. cifar10.")]
Source = Annotated[str, typer.Argument(help="A data set, e.g. cifar10, or your own file or folder.")]
Names = Annotated[list[str], typer.Argument(help="Data sets, e.g. cifar10 mnist.")]


def _card(s: DataSet) -> dict[str, Any]:
    parts = s.layout.subsets()
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
    """List the data sets, and how much of each is in the cache."""
    if json:
        print_json([_card(s) for s in data.SETS.values()])
        return
    rows = (
        (s.name, f"{s.classes}", _images(s), ", ".join(s.layout.options), state(s.name)) for s in data.SETS.values()
    )
    columns = ("!data set", ">classes", ">images", "options", "!in cache")
    print_table(make_table("", columns, rows), Console())


def _images(s: DataSet) -> str:
    return ", ".join(f"{n:,} {part}" for part, n in s.sizes.items())


@app.command("show")
def show(name: Source, json: options.Json = False) -> None:
    """Show a data set: its parts, its sources, and its folder in the cache; or a file or folder and its classes."""
    if name not in data.SETS and (name.startswith((FOLDER, NPZ)) or Path(data_options(name)[0]).exists()):
        _show_own(as_problem(name), json)
        return
    s = find(name)
    card = _card(s)
    if json:
        print_json(card)
        return
    facts = {
        "data set": s.title,
        "paper": s.paper,
        "classes": str(s.classes),
        "images": _images(s),
        "options": ", ".join(s.layout.options),
        "corruptions": ", ".join(card["corruptions"]),
        "preprocessing": card["preprocessing"] or "",
        "benchmark list, sha256": LIST_DIGEST if "paths" in s.layout.options else "",
        "sources": "\n".join(f"{' or '.join(f.sources)} ({f.digest or 'digest unknown'})" for f in s.files),
        "downloaded when loaded": "yes" if s.automatic else "no",
        "manual download": s.by_hand,
        "folder in the cache": str(data.place(name)),
        "in cache": card["cache"],
    }
    print_facts(facts, Console())


def _show_own(problem: Problem, json: bool) -> None:
    """Show the user's own samples: number, shape, and what a label means."""
    shape, names = problem.shape(), problem.classes
    if json:
        print_json({"name": problem.name, "samples": len(problem), "shape": list(shape), "classes": names})
        return
    labels = numbered(names, len(names)) if names else f"{int(problem.y.min())} to {int(problem.y.max())}"
    size = " × ".join(map(str, shape))
    facts = {"data": problem.name, "samples": f"{len(problem):,}", "shape": size, "labels": labels}
    print_facts(facts, Console())


@app.command("fetch")
def fetch(names: Names, quiet: options.Quiet = False) -> None:
    """Download data sets into the cache, check them and unpack them."""
    for s in [find(name) for name in names]:
        with progress_bar(s.name, quiet, download=True) as update:
            folder = data.fetch(s.name, update)
        typer.echo(str(folder))


@app.command("check")
def check(
    name: Name,
    root: Annotated[Path | None, typer.Option(help="Folder of the data set; default: the cache.")] = None,
    json: options.Json = False,
) -> None:
    """Check every part of a data set against the published counts; exit code 1 if a part differs."""
    results = data.check(name, root)
    if json:
        print_json([{**asdict(r), "ok": r.ok} for r in results])
    else:
        rows = (
            (
                r.name,
                "" if r.n is None else f"{r.n:,}",
                f"{r.published:,}",
                Text("as published", "green") if r.ok else Text(r.trouble, "red", overflow="fold"),
            )
            for r in results
        )
        print_table(make_table("", ("!part", ">images", ">published", ""), rows), Console())
    if not all(r.ok for r in results):
        raise typer.Exit(1)
