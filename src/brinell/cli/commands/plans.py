"""brinell plans."""

import json as json_format

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.attacks.catalogue import PLANS
from brinell.cli._shared import options
from brinell.cli._shared.terminal import put


def command(json: options.Json = False) -> None:
    """List the plans."""
    if json:
        typer.echo(json_format.dumps({name: p.to_json() for name, p in PLANS.items()}, indent=2, default=str))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("plan", no_wrap=True)
    table.add_column("strength", no_wrap=True)
    table.add_column("what it runs, and where it comes from")
    for name, p in PLANS.items():
        table.add_row(name, p.strength, Text.assemble(p.description, ("\n" + p.citation if p.citation else "", "dim")))
    put(table, Console())
