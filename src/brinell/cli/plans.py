"""brinell plans."""

import json as json_format

import typer
from rich.console import Console
from rich.table import Table

from brinell.cli import options
from brinell.evaluate.presets import PLANS


def command(json: options.Json = False) -> None:
    """List the plans."""
    if json:
        typer.echo(json_format.dumps({name: p.to_json() for name, p in PLANS.items()}, indent=2, default=str))
        return
    table = Table("plan", "what it runs", "strength", "from")
    for name, p in PLANS.items():
        table.add_row(name, p.description, p.strength, p.citation)
    Console().print(table)
