"""The program `brinell`: its commands, and how errors are printed.

Only the command that is called is imported, so that `brinell --help` and `brinell --version` do not wait for torch.
"""

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from brinell import __version__
from brinell.cli._shared import completion
from brinell.cli._shared.missing import Command, Group
from brinell.errors import BrinellError, printable
from brinell.storage import storage_error

# The exit code of Typer after Ctrl-C.
INTERRUPTED = 130
AGAIN = "Interrupted. Run the same command again to continue."
RESUME = "Interrupted. Run the same command again with --resume to continue."

START = "Start here"
MEASURE = "Measure a model"
READ = "Read, compare and share results"
TRUST = "Test whether an attack is reliable"
SUPPLY = "Models and data"

# Name, panel, and the line in the list of commands. The module of a command has its name, with _ for -.
COMMANDS = (
    ("demo", START, "Evaluate the embedded model on the embedded images."),
    ("doctor", START, "Show packages and devices, and run a self-test."),
    ("evaluate", MEASURE, "Attack a model and report its robust accuracy."),
    ("plans", MEASURE, "List the attack plans and their strength."),
    ("benchmark", MEASURE, "Measure under the rules of a leaderboard."),
    ("curve", MEASURE, "Measure the smallest adversarial perturbations."),
    ("corruptions", MEASURE, "Measure accuracy under noise, blur and weather."),
    ("report", READ, "Write a report of Runs, or gate a release."),
    ("compare", READ, "Compare two Runs sample by sample."),
    ("certify", MEASURE, "Prove survivors of a Run to be robust."),
    ("verify", READ, "Check every adversarial example again."),
    ("merge", READ, "Merge Runs on parts of the data."),
    ("submit", READ, "Pack a finished Run into one file."),
    ("dossier", READ, "Write signed evidence for an assessor."),
    ("test-attack", TRUST, "Test an attack on planted adversarial examples."),
    ("probe", TRUST, "Search for signs that an attack fails."),
    ("gallery", TRUST, "Measure defences that were broken."),
    ("rescalings", TRUST, "Compare seven rescalings of the logits."),
    ("reproduce", TRUST, "Reproduce tables and figures of the papers."),
    ("train", SUPPLY, "Train a model to be robust."),
    ("distances", SUPPLY, "Measure distances between classes of a data set."),
)
# Commands with commands of their own.
GROUPS = (
    ("analyze", MEASURE, "Calibration, fairness, privacy, transfer, …"),
    ("leaderboard", READ, "Rank models: a static site, or tables for papers."),
    ("zoo", SUPPLY, "List, show, fetch and check published models."),
    ("data", SUPPLY, "List, show, fetch and check data sets."),
)


def command_of(name: str) -> Any:
    """Import a command: return its function, or the Typer app of a group."""
    module = import_module(f"brinell.cli.commands.{name.replace('-', '_')}")
    return module.app if name in {group for group, *_ in GROUPS} else module.command


def _line_only() -> None:
    """Do nothing: the placeholder of a command that is not called and needs only its line in the help."""


def program(*called: str) -> typer.Typer:
    """Return the program with the commands `called`; all other commands have only a line in the help."""
    app = typer.Typer(
        name="brinell",
        cls=Group,
        help="Measure how hard a classifier is to break.",
        epilog="Start with brinell demo. Every command has its own help: brinell evaluate --help.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, panel, line in (*COMMANDS, *GROUPS):
        if name not in called:
            app.command(name, rich_help_panel=panel, short_help=line)(_line_only)
            continue
        from brinell.cli._shared.panels import grouped

        if isinstance(found := command_of(name), typer.Typer):
            for command in found.registered_commands:
                command.cls = Command
            app.add_typer(found, name=name, cls=Group, rich_help_panel=panel, short_help=line)
        else:
            app.command(name, cls=Command, rich_help_panel=panel, short_help=line)(grouped(found))
    return app


def _program_to_complete(typed: list[str]) -> typer.Typer:
    """Return the program for a shell that completes the words typed so far; values are completed without torch."""
    if not completion.VALUES.intersection(typed[-2:]):
        return program(*typed[1:2])
    from brinell.cli._shared.completed import command

    app = typer.Typer(name="brinell")
    app.callback()(_options)
    for name, *_ in (*COMMANDS, *GROUPS):
        app.command(name, context_settings={"ignore_unknown_options": True})(command)
    return app


def __getattr__(name: str) -> Any:
    """Return `app`, the program with all commands, for tests and for the documentation."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = program(*(command for command, *_ in (*COMMANDS, *GROUPS)))
    return app


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"brinell {__version__}")
        raise typer.Exit
    return wanted


def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Measure how hard a classifier is to break."""


def _print_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    Console(stderr=True).print(Text.assemble(("warning:", "bold red"), f" {printable(str(message))}"), soft_wrap=True)


def main() -> None:
    """Run the program; print a BrinellError as one line on standard error and exit with code 2.

    Print a warning as one line on standard error too. An OSError becomes a StorageError.
    """
    warnings.showwarning = _print_warning
    # A name of a file need not be valid Unicode.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    typed = completion.words_to_complete()
    try:
        try:
            (program(*sys.argv[1:2]) if typed is None else _program_to_complete(typed))(prog_name="brinell")
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
    except BrinellError as error:
        _exit(error)
    except BrokenPipeError:  # the reader of the output has ended
        _discard_output()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that vanished: nothing that Brinell did wrong
        _discard_output()
        _exit(storage_error(error))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            Console(stderr=True).print(Text(AGAIN if "certify" in sys.argv[1:2] else RESUME), soft_wrap=True)
        raise


def _discard_output() -> None:
    """Let standard output go nowhere, so that what is left in its buffer causes no second error."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit(error: BrinellError) -> None:
    # As text: a message may hold brackets.
    Console(stderr=True).print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)
    sys.exit(2)
