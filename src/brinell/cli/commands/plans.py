"""The command `brinell plans`: list the attack plans. It reads the plans from a file and does not import torch."""

import json as json_format
from importlib.resources import files
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def listed() -> dict[str, list[str]]:
    """Return the strength, the description and the citation of every plan by name."""
    plans: dict[str, list[str]] = json_format.loads((files("brinell") / "attacks" / "plans.json").read_text())
    return plans


def command(
    json: Annotated[bool, typer.Option("--json", help="Print the plans with all their stages as JSON.")] = False,
) -> None:
    """List the plans with their strength, their attacks and their source."""
    if json:
        from brinell.attacks.catalogue import PLANS

        typer.echo(json_format.dumps({name: p.to_json() for name, p in PLANS.items()}, indent=2, default=str))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("plan", no_wrap=True)
    table.add_column("strength", no_wrap=True)
    table.add_column("attacks and source")
    for name, (strength, description, citation) in listed().items():
        table.add_row(name, strength, Text.assemble(description, (f"\n{citation}" if citation else "", "dim")))
    Console().print(table, width=min(Console().width, 100))
