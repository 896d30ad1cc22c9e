"""A command that has only the options whose values a shell completes; it stands for every command then."""

from typing import Annotated

import typer

from brinell.cli._shared import options


def command(
    model: options.Model = "",
    data: options.Data = "",
    plan: options.Plan = "",
    norm: options.Norm = "",
    words: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Do nothing."""
