"""The program `brinell`."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli import (
    analyze,
    benchmark,
    binarization,
    compare,
    corruptions,
    curve,
    data,
    demo,
    distances,
    doctor,
    evaluate,
    gallery,
    leaderboard,
    merge,
    plans,
    probe,
    report,
    rescalings,
    submit,
    train,
    verify,
    zoo,
)
from brinell.errors import BrinellError
from brinell.evaluate.environment import version

# What the command-line library makes of Ctrl-C.
INTERRUPTED = 130
AGAIN = "interrupted; the same command with --out and --resume goes on where it was"

app = typer.Typer(
    name="brinell",
    help="Measure how hard a classifier is to break.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("evaluate")(evaluate.command)
app.command("benchmark")(benchmark.command)
app.command("test-attack")(binarization.command)
app.command("train")(train.command)
app.command("submit")(submit.command)
app.command("verify")(verify.command)
app.command("compare")(compare.command)
app.command("report")(report.command)
app.command("merge")(merge.command)
app.command("plans")(plans.command)
app.command("probe")(probe.command)
app.command("gallery")(gallery.command)
app.command("rescalings")(rescalings.command)
app.command("curve")(curve.command)
app.command("distances")(distances.command)
app.command("corruptions")(corruptions.command)
app.add_typer(analyze.app, name="analyze")
app.add_typer(zoo.app, name="zoo")
app.add_typer(data.app, name="data")
app.add_typer(leaderboard.app, name="leaderboard")
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"brinell {version()}")
        raise typer.Exit
    return wanted


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
        # As text: a message may hold brackets.
        Console(stderr=True).print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            Console(stderr=True).print(Text(AGAIN), soft_wrap=True)
        raise
