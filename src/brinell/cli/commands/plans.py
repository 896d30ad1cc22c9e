"""The command `brinell plans`: list the attack plans."""

import json as json_format

import typer
from rich.console import Console
from rich.text import Text

from brinell.attacks.catalogue import PLANS
from brinell.cli._shared import options
from brinell.cli._shared.terminal import make_table, print_table


def command(json: options.Json = False) -> None:
    """List the plans with their strength, their attacks and their source."""
    if json:
        typer.echo(json_format.dumps({name: p.to_json() for name, p in PLANS.items()}, indent=2, default=str))
        return
    rows = (
        (name, p.strength, Text.assemble(p.description, ("\n" + p.citation if p.citation else "", "dim")))
        for name, p in PLANS.items()
    )
    print_table(make_table("", ("!plan", "!strength", "attacks and source"), rows), Console())
