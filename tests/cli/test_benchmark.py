"""brinell benchmark: the numbers of a leaderboard on the screen, as JSON and in a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from brinell.leaderboard import records
from brinell.leaderboard.records import RECORD
from brinell.results import Run

pytestmark = pytest.mark.usefixtures("few")

# A radius at which everything falls at once, so that AutoAttack is quick.
BENCHMARK = ("benchmark", "--model", "demo", "--dataset", "demo", "--threat", "Linf", "--n", "4", "--eps", "0.5", "-q")


def test_benchmark(brinell: Any, here: Path) -> None:
    (here / "about.json").write_text('{"venue": "ICML 2026", "reported": 12.5}')
    code, out, err = brinell(*BENCHMARK, "--out", "run", "--name", "Mine", "--about", "about.json")
    assert (code, err) == (0, "")
    for part in ("plan autoattack", "demo/Linf/Mine", "robust, %", "0.00", "12.50", "status: unverified, reliable"):
        assert part in out
    record = records.read(here / "run" / RECORD)
    assert (record.name, record.venue, record.overestimation) == ("Mine", "ICML 2026", 12.5)
    assert f"Record: {Path('run') / RECORD}" in out
    assert Run.open("run").finished


def test_benchmark_json_and_resume(brinell: Any, here: Path) -> None:
    first = brinell(*BENCHMARK, "--out", "run", "--json")
    again = brinell(*BENCHMARK, "--out", "run", "--resume", "--json")
    assert (first.code, again.code) == (0, 0)
    assert json.loads(first.out) == json.loads(again.out) == json.loads((here / "run" / RECORD).read_text())
    assert json.loads(first.out)["autoattack_acc"] == "0.00"


def test_errors_list_what_there_is(brinell: Any, here: Path) -> None:
    code, _, err = brinell("benchmark", "--model", "demo", "--dataset", "cifar11")
    assert code == 2
    assert "cifar10/Linf, cifar10/L2, cifar10/corruptions" in err
    code, _, err = brinell(*BENCHMARK, "--about", "notes.txt")
    assert code == 2 and "facts about the model" in err
    (here / "list.json").write_text("[]")
    assert "authors" in brinell(*BENCHMARK, "--about", "list.json").err


def test_violations(brinell: Any, here: Path) -> None:
    (here / "rounding.py").write_text(
        "from torch import nn\nfrom brinell.models.demo import demo_net\n"
        "class Rounding(nn.Module):\n    def forward(self, x):\n        return (4 * x).round() / 4\n"
        "def net():\n    return nn.Sequential(Rounding(), demo_net()).eval()\n"
    )
    arguments = ("benchmark", "-m", "rounding.py:net", "--dataset", "demo", "--n", "2", "--eps", "0.9", "-q")
    code, _, err = brinell(*arguments)
    assert code == 2 and "non-zero gradients" in err and "--anyway" in err
    code, out, _ = brinell(*arguments, "--anyway")
    assert code == 0 and "violated: non-zero gradients" in out
