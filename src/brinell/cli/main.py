"""The program `brinell`: its commands, and how errors are printed."""

import sys
import warnings
from typing import Annotated, Any

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
    reproduce,
    rescalings,
    submit,
    test_attack,
    train,
    verify,
    zoo,
)
from brinell.environment import version
from brinell.errors import BrinellError

# The exit code of Typer after Ctrl-C.
INTERRUPTED = 130
RESUME = "Interrupted. Run again with --resume and the same --out to continue."

app = typer.Typer(
    name="brinell",
    help="Measure how hard a classifier is to break.",
    epilog="Start with brinell demo. Every command has its own help: brinell evaluate --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Name, function, panel, and the line in the list of commands.
COMMANDS = (
    ("demo", demo.command, START, "Evaluate the embedded model on the embedded images."),
    ("doctor", doctor.command, START, "Show packages and devices, and run a self-test."),
    ("evaluate", evaluate.command, MEASURE, "Attack a model and report its robust accuracy."),
    ("plans", plans.command, MEASURE, "List the attack plans and their strength."),
    ("benchmark", benchmark.command, MEASURE, "Measure under the rules of a leaderboard."),
    ("curve", curve.command, MEASURE, "Measure the smallest adversarial perturbations."),
    ("corruptions", corruptions.command, MEASURE, "Measure accuracy under noise, blur and weather."),
    ("report", report.command, READ, "Write a report of Runs, or gate a release."),
    ("compare", compare.command, READ, "Compare two Runs sample by sample."),
    ("verify", verify.command, READ, "Check every adversarial example again."),
    ("merge", merge.command, READ, "Merge Runs on parts of the data."),
    ("submit", submit.command, READ, "Pack a finished Run into one file."),
    ("test-attack", test_attack.command, TRUST, "Test an attack on planted adversarial examples."),
    ("probe", probe.command, TRUST, "Search for signs that an attack fails."),
    ("gallery", gallery.command, TRUST, "Measure defences that were broken."),
    ("rescalings", rescalings.command, TRUST, "Compare seven rescalings of the logits."),
    ("reproduce", reproduce.command, TRUST, "Reproduce tables and figures of the papers."),
    ("train", train.command, SUPPLY, "Train a model to be robust."),
    ("distances", distances.command, SUPPLY, "Measure distances between classes of a data set."),
)
for _name, _function, _panel, _line in COMMANDS:
    app.command(_name, rich_help_panel=_panel, short_help=_line)(grouped(_function))
GROUPS = (
    ("analyze", analyze.app, MEASURE, "Calibration, fairness, privacy, transfer, …"),
    ("leaderboard", leaderboard.app, READ, "Build a static site that ranks models."),
    ("zoo", zoo.app, SUPPLY, "List, show, fetch and check published models."),
    ("data", data.app, SUPPLY, "List, show, fetch and check data sets."),
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


def _print_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    Console(stderr=True).print(Text.assemble(("warning:", "bold red"), f" {message}"), soft_wrap=True)


def main() -> None:
    """Run the program; print a BrinellError as one line on standard error and exit with code 2.

    A warning is one line on standard error too.
    """
    warnings.showwarning = _print_warning
    try:
        app()
    except BrinellError as error:
        # As text: a message may hold brackets.
        Console(stderr=True).print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            Console(stderr=True).print(Text(RESUME), soft_wrap=True)
        raise
