"""Tables and sentences as the verbs print them."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.results import Proportion

WIDTH = 100


def titled(title: str) -> Table:
    """An empty table under its title."""
    return Table(title=Text(title), box=box.ROUNDED, title_justify="left")


def put(table: Any, console: Console) -> None:
    """Print a table, or whatever else has a width, no wider than is pleasant to read."""
    console.print(table, width=min(console.width, WIDTH))


def tell(console: Console, *sentences: str) -> None:
    """Print sentences: on a terminal wrapped between words; elsewhere one line each, for whoever reads by program."""
    width = min(console.width, WIDTH) if console.is_terminal else None
    for sentence in sentences:
        console.print(Text(sentence), soft_wrap=not console.is_terminal, width=width)


def put_facts(facts: Mapping[str, str], console: Console) -> None:
    """Print what is known of one thing, line by line; what is empty is left out."""
    table = Table("what", "value", show_header=False, box=None)
    for what, value in facts.items():
        if value:
            table.add_row(what, Text(value, overflow="fold"))
    put(table, console)


def counts(p: Proportion | None) -> dict[str, Any] | None:
    """A percentage for programs: value, interval and what it is made of."""
    return None if p is None else {"value": p.value, "low": p.low, "high": p.high, "n": p.n, "k": p.k}
