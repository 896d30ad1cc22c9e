"""A plan is strong by what it did, not by what it calls itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, FGSM, PGD, Square
from brinell.models.demo import demo_net
from brinell.testing.runs import reseal

pytestmark = pytest.mark.usefixtures("unchecked", "few")
DATA = brinell.data.load("demo", 6)


def graded(attacks: list[Any], eps: float = 0.001, strength: str = "standard", **options: Any) -> brinell.Run:
    stages = tuple(a if isinstance(a, brinell.Stage) else brinell.Stage(a) for a in attacks)
    plan = brinell.Plan("mine", stages, strength=strength)
    return brinell.evaluate("demo", DATA, brinell.Linf(eps), plan, progress=False, **options)


@pytest.mark.parametrize(
    ("attacks", "said"),
    [
        ([Square(steps=200)], "none of its attacks uses gradients"),
        ([APGD(steps=25)], "no black-box attack"),
        ([PGD(steps=3), Square(steps=100)], "only 4 gradients on some survivors"),
        ([APGD(steps=25), Square(steps=10)], "made only 11 queries on some survivors"),
    ],
    ids=["no gradients", "only gradients", "three steps", "ten queries"],
)
def test_a_plan_that_only_calls_itself_strong_is_suspicious(attacks: list[Any], said: str) -> None:
    run = graded(attacks)
    (finding,) = [f for f in run.verdict.findings if "is called strong, but" in f.message]
    assert run.verdict.level == "suspicious" and said in finding.message and finding.anchor == "verdict.md#weak-plan"


def test_one_that_is_strong_enough_is_reliable() -> None:
    run = graded([PGD(steps=10), APGD(steps=15), Square(steps=60)])
    assert len(run.survivors()) and run.verdict.level == "reliable", str(run.verdict)


def test_where_nothing_stands_there_is_nothing_to_doubt() -> None:
    run = graded([PGD(steps=10)], eps=0.9)
    assert run.robust_accuracy.k == 0 and run.verdict.level == "reliable", str(run.verdict)


def test_an_audit_must_look_hard_too() -> None:
    """One step on all survivors would call a plan of one step audited."""
    lazy = graded([FGSM(), brinell.Stage(PGD(steps=1), share=1.0)], strength="audited", audit=1.0)
    (reason,) = [r for r in lazy.verdict.reasons if "is called strong, but" in r]
    assert reason.startswith("The audit of mine") and "it spent only" in reason
    sound = graded([FGSM(), brinell.Stage(APGD(steps=25), share=1.0)], strength="audited", audit=1.0)
    assert not [r for r in sound.verdict.reasons if "is called strong, but" in r]


class Astray(torch.autograd.Function):
    """Gradients that lead the wrong way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


class Masked(nn.Module):
    def __init__(self, noise: float) -> None:
        super().__init__()
        self.net, self.noise = demo_net(), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(Astray.apply(x)) + self.noise * torch.randn(len(x), 10)


@pytest.mark.parametrize(("noise", "random"), [(0.0, False), (0.5, True)])
def test_a_plan_for_randomised_models_makes_no_allowances_where_nothing_is_random(noise: float, random: bool) -> None:
    torch.manual_seed(0)
    stages = (brinell.Stage(APGD(steps=25)), brinell.Stage(Square(steps=200)))
    plan = brinell.Plan("mine", stages, strength="standard", draws=5)
    net = brinell.wrap(Masked(noise).eval())
    run = brinell.evaluate(net, brinell.data.load("demo", 24), brinell.Linf(0.1), plan, progress=False)
    (check,) = [c for c in run.checks if c["name"] == "randomised"]
    assert check["level"] == ("ok" if random else "info")
    assert any("black-box attack square" in r for r in run.verdict.reasons) != random


@pytest.mark.parametrize("strength", [None, "mighty"])
def test_a_run_that_does_not_say_how_strong_its_plan_is_counts_as_weak(strength: Any, tmp_path: Path) -> None:
    run = graded([APGD(steps=25), Square(steps=60)], out=tmp_path / "run")
    assert run.verdict.level == "reliable", str(run.verdict)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["identity"]["plan"]["strength"] = strength
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    reseal(run.path)
    assert brinell.Run.open(run.path).verdict.level == "upper bound"
