"""The options of the plan fast, with small budgets in its place."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brinell import Run, Stage
from brinell.attacks import PGD, Pursuit, catalogue

pytestmark = pytest.mark.usefixtures("unchecked", "few")

N = 40
FAST = ("evaluate", "--model", "demo", "--data", "demo", "--n", N, "--eps", "0.1", "--plan", "fast", "-q", "--json")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    short, audit = Stage(Pursuit(steps=4, targets=2, again=0)), Stage(PGD(steps=20), share=0.125)
    small = replace(catalogue.by_name("fast"), stages=(short, audit))
    monkeypatch.setitem(catalogue.PLANS, "fast", small)


def test_the_audit_is_shown(brinell: Any, here: Path) -> None:
    code, out, err = brinell(*FAST[:-1], "--out", "run")
    assert code == 0, err
    assert "survivors attacked by the full plan" in " ".join(out.replace("│", " ").split())
    assert "of which pgd-ce:" in " ".join(out.replace("│", " ").split())
    told, a = json.loads(brinell(*FAST).out)["audit"], Run.open("run").audit
    assert a is not None
    assert (told["survivors"], told["audited"], told["found"]) == (a.survivors, a.audited, a.found)


def test_no_audit(brinell: Any, here: Path) -> None:
    code, out, _ = brinell(*FAST, "--audit", 0)
    told = json.loads(out)
    assert code == 0
    assert told["audit"] is None
    assert [s["attack"] for s in told["stages"]] == ["pursuit"]
    assert "was not audited" in " ".join(told["verdict"]["reasons"])


def test_a_larger_audit(brinell: Any, here: Path) -> None:
    eighth, half, whole = (json.loads(brinell(*FAST, *more).out) for more in ((), ("--audit", 0.5), ("--audit", 1)))
    survivors = half["audit"]["survivors"]
    assert eighth["audit"]["audited"] < half["audit"]["audited"] < survivors
    assert 0.25 * survivors < half["audit"]["audited"] < 0.75 * survivors
    assert whole["audit"]["audited"] == survivors
    assert whole["audit"]["missed_at_most"] == 0


@pytest.mark.parametrize("share", ["150", "-0.1"])
def test_a_share_that_makes_no_sense(share: str, brinell: Any, here: Path) -> None:
    code, out, err = brinell(*FAST, "--audit", share)
    assert code == 2 and out == ""
    assert "a share from 0 to 100 %" in err
    assert "Traceback" not in err


def test_an_audit_of_a_plan_without_one(brinell: Any, here: Path) -> None:
    arguments = ["fgsm" if a == "fast" else a for a in FAST]
    code, out, err = brinell(*arguments, "--audit", 0.5, "--out", "run")
    assert code == 2 and out == ""
    assert "a plan with an audit" in err and "fgsm" in err
    assert not (here / "run").exists()


def test_escalate(brinell: Any, here: Path) -> None:
    """A network whose input is quantised: the gradient is zero, a check warns, every survivor is attacked."""
    (here / "steps.py").write_text(
        "from torch import nn\n"
        "from brinell.models.demo import demo_net\n"
        "class Quantised(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.net = demo_net()\n"
        "    def forward(self, x):\n        return self.net((x * 7).round() / 7)\n"
        "def make():\n    return Quantised().eval()\n"
    )
    arguments = ["steps.py:make" if a == "demo" and FAST[i - 1] == "--model" else a for i, a in enumerate(FAST)]
    plain = json.loads(brinell(*arguments, "--out", "run").out)
    assert plain["audit"]["audited"] < plain["audit"]["survivors"]
    code, _, err = brinell(*arguments, "--out", "run", "--resume", "--escalate")
    assert code == 0, err
    run = Run.open("run")
    assert run.audit is not None and run.audit.complete
    full = {r["sample_id"] for r in run.rows().to_pylist() if r["attack"] == "pgd-ce"}
    assert full >= set(run.survivors().tolist())


def test_nothing_to_escalate(brinell: Any, here: Path) -> None:
    plain, willing = (json.loads(brinell(*FAST, "--audit", 0.5, *more).out) for more in ((), ("--escalate",)))
    assert plain["audit"]["objects"] is False
    assert plain["verdict"]["level"] == "reliable"
    assert plain["cost"]["forwards"] == willing["cost"]["forwards"]
    code, out, err = brinell(*FAST, "--audit", 0, "--escalate")
    assert code == 2 and out == ""
    assert "a plan with an audit, for escalate" in err
