"""Help is grouped by purpose and readable on a terminal of 80 columns."""

import inspect
import re
import subprocess
import sys
from typing import Any, get_args

import pytest

from brinell.attacks.catalogue import PLANS
from brinell.cli._shared import options, panels
from brinell.cli.commands.plans import listed
from brinell.cli.main import COMMANDS, GROUPS, MEASURE, READ, START, SUPPLY, TRUST, command_of

NAMES = [name for name, *_ in (*COMMANDS, *GROUPS)]
PURPOSES = (START, MEASURE, READ, TRUST, SUPPLY)


def titles(text: str) -> list[str]:
    return [line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭")]


def test_every_command_has_one_line_in_the_panel_of_its_purpose(brinell: Any) -> None:
    out = brinell("--help", width=80).out
    assert titles(out) == ["Options", *PURPOSES]
    first, *panels = re.split("╭─", out)[1:]
    assert set(re.findall(r"│ (--[a-z-]+)", first)) == {
        "--version",
        "--help",
        "--install-completion",
        "--show-completion",
    }
    rows = [line.strip("│ ").split()[0] for panel in panels for line in panel.splitlines() if line.startswith("│")]
    assert sorted(rows) == sorted(NAMES)  # none goes on in a second line
    assert "…" not in "".join(line for *_, line in COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_cuts_nothing_off(name: str, brinell: Any) -> None:
    out = brinell(name, "--help", width=80).out
    assert max(map(len, out.splitlines())) <= 80
    assert "<bool>" not in out  # flags take no value
    for function in (command_of(command) for command, *_ in COMMANDS if command == name):
        for option in inspect.signature(options.expanded(function)).parameters:
            assert f"--{option.replace('_', '-')}" in out or option in (
                "runs",
                "known",
                "run",
                "a",
                "b",
                "parts",
                "submissions",
                "name",
            )


def test_the_usual_options_come_first(brinell: Any) -> None:
    out = brinell("evaluate", "--help", width=80).out
    assert titles(out) == ["Options", "Attack", "Record", "Execution", "Reliability", "Output"]
    first = out[: out.index("Attack ─")]
    for option in ("--model", "--data", "--eps", "--norm", "--plan", "--n", "--out", "--resume", "--dry-run"):
        assert re.search(rf" {option}[ ,]", first)
    assert titles(brinell("report", "--help", width=80).out) == ["Arguments", "Options"]


def test_every_panel_names_options_that_exist() -> None:
    known = {
        option for name, *_ in COMMANDS for option in inspect.signature(options.expanded(command_of(name))).parameters
    }
    assert set(panels.PANEL_OF) <= known


def test_options_that_commands_share_are_not_changed() -> None:
    assert get_args(options.Device)[1].rich_help_panel is None


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from brinell.cli.main import program; program('plans'); "
        "print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_list_of_plans_is_that_of_the_catalogue() -> None:
    """`brinell plans` reads a file, so that it does not wait for torch."""
    told = {name: [p.strength, p.description, p.citation] for name, p in PLANS.items()}
    assert list(listed().items()) == list(told.items())
