"""The CI action: its commands, run as its steps run them, pass a good model and fail a bad one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import brinell

ACTION = Path(__file__).parents[2] / "examples" / "ci" / "brinell-gate" / "action.yml"


def steps() -> list[str]:
    """Return the scripts of the steps: what follows `run:`, without its indentation."""
    text = ACTION.read_text().partition("runs:")[2]
    blocks = re.findall(r"^      run: (?:\|\n((?:        .*\n)+)|(.*)\n)", text, re.MULTILINE)
    return [re.sub(r"^        ", "", many, flags=re.MULTILINE) or one for many, one in blocks]


def test_every_input_is_used_and_nothing_is_put_into_a_script() -> None:
    """Values reach the shell as environment variables only: in a script, they could run as commands."""
    text = ACTION.read_text()
    names = re.findall(r"^  ([\w-]+):$", text.partition("inputs:")[2].partition("outputs:")[0], re.MULTILINE)
    assert {"model", "data", "eps", "fail-under", "require"} <= set(names)
    assert [n for n in names if f"inputs.{n} " not in text] == []
    assert not any("${{" in script for script in steps())


@pytest.mark.slow
def test_the_gate(tmp_path: Path) -> None:
    x, y = brinell.data.load("demo", 40)
    np.savez(tmp_path / "test.npz", x=x.numpy(), y=y.numpy())
    given = {
        "MODEL": "demo", "DATA": "test.npz", "EPS": "0.05", "NORM": "Linf", "PLAN": "fgsm", "N": "32", "OUT": "out",
        "REQUIRE": "upper-bound", "PYTHON": sys.executable,
    }  # fmt: skip

    np.savez(tmp_path / "other.npz", x=1 - x.numpy(), y=y.numpy())

    def run(scripts: list[str], under: str, **changed: str) -> int:
        script = "\n".join(['brinell() { "$PYTHON" -m brinell "$@"; }', *scripts])
        env = {**os.environ, **given, "UNDER": under, **changed}
        return subprocess.run(["bash", "-eo", "pipefail", "-c", script], env=env, cwd=tmp_path, check=False).returncode

    _, evaluates, gates = steps()
    assert run([evaluates, gates], "30") == 0
    assert (tmp_path / "out" / "robustness.xml").exists() and (tmp_path / "out" / "run" / "manifest.json").exists()
    assert run([gates], "99") == 1
    # The JUnit file is there even if the verification fails.
    (tmp_path / "out" / "robustness.xml").unlink()
    assert run([gates], "30", DATA="other.npz") == 1
    assert (tmp_path / "out" / "robustness.xml").exists()


def test_the_page_shows_the_whole_workflow() -> None:
    root = ACTION.parents[3]
    workflow = (root / "examples" / "ci" / "robustness.yml").read_text().partition("name: ")[2]
    assert f"name: {workflow}```" in (root / "docs" / "howto" / "ci-gate.md").read_text()
