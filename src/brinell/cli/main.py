"""The program `brinell`."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared.panels import MEASURE, READ, START, SUPPLY, TRUST, grouped
from brinell.cli.commands import (
    analyze,
    benchmark,
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
from brinell.cli.commands import test_attack as binarization
from brinell.environment import version
from brinell.errors import BrinellError

# What the command-line library makes of Ctrl-C.
INTERRUPTED = 130
AGAIN = "interrupted; the same command with --out and --resume goes on where it was"

app = typer.Typer(
    name="brinell",
    help="Measure how hard a classifier is to break.",
    epilog="A first look: brinell demo. Every command says more: brinell evaluate --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Command, panel, the line in the list of commands; the panels in this order.
COMMANDS = (
    ("demo", demo.command, START, "Evaluate the embedded model on the embedded images."),
    ("doctor", doctor.command, START, "What is installed, which devices, a small self-test."),
    ("evaluate", evaluate.command, MEASURE, "Attack a model and report its robust accuracy."),
    ("plans", plans.command, MEASURE, "List the plans: which attacks, how strong."),
    ("benchmark", benchmark.command, MEASURE, "Measure as a leaderboard does, and write a record."),
    ("curve", curve.command, MEASURE, "At which distance each sample breaks; a curve."),
    ("corruptions", corruptions.command, MEASURE, "Accuracy under noise, blur, weather and the like."),
    ("report", report.command, READ, "Write a report of Runs; a gate for releases."),
    ("compare", compare.command, READ, "Compare two Runs sample by sample."),
    ("verify", verify.command, READ, "Check every adversarial example again."),
    ("merge", merge.command, READ, "Join Runs of parts of the data."),
    ("submit", submit.command, READ, "Pack a finished Run into one file for others."),
    ("test-attack", binarization.command, TRUST, "Test an attack where adversarials are known."),
    ("probe", probe.command, TRUST, "Look for signs that an attack fails."),
    ("gallery", gallery.command, TRUST, "Defences that did not hold, and what catches them."),
    ("rescalings", rescalings.command, TRUST, "Seven rescalings of the logits, compared."),
    ("train", train.command, SUPPLY, "Train a model to withstand a threat."),
    ("distances", distances.command, SUPPLY, "How far apart the classes of a data set are."),
)
for _name, _function, _panel, _line in COMMANDS:
    app.command(_name, rich_help_panel=_panel, short_help=_line)(grouped(_function))
GROUPS = (
    ("analyze", analyze.app, MEASURE, "Beyond robust accuracy: calibration, fairness, …"),
    ("leaderboard", leaderboard.app, READ, "A static site that ranks models."),
    ("zoo", zoo.app, SUPPLY, "Published models: list, show, fetch, check."),
    ("data", data.app, SUPPLY, "Data sets by name: list, show, fetch, check."),
)
for _name, _group, _panel, _line in GROUPS:
    app.add_typer(_group, name=_name, rich_help_panel=_panel, short_help=_line)


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
