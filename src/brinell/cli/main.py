"""The program `brinell`."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from brinell.cli import compare, demo, doctor, evaluate, merge, plans, verify
from brinell.errors import BrinellError
from brinell.evaluate.environment import version

app = typer.Typer(
    name="brinell",
    help="Measure how hard a classifier is to break.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("evaluate")(evaluate.command)
app.command("verify")(verify.command)
app.command("compare")(compare.command)
app.command("merge")(merge.command)
app.command("plans")(plans.command)
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"brinell {version()}")
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Measure how hard a classifier is to break."""


def main() -> None:
    """Run the program; a user's error is one red sentence and exit code 2."""
    try:
        app()
    except BrinellError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; add --resume to go on where it was", highlight=False)
        sys.exit(130)
