"""A plan is strong by what it did, not by what it calls itself."""

import json
from pathlib import Path
from typing import Any

import pytest

import brinell
from brinell.attacks import APGD, FGSM, PGD, Square

pytestmark = pytest.mark.usefixtures("unchecked")
DATA = brinell.data.load("demo", 6)


def judged(attacks: list[Any], eps: float = 0.001, strength: str = "standard", **options: Any) -> brinell.Run:
    stages = tuple(a if isinstance(a, brinell.Stage) else brinell.Stage(a) for a in attacks)
    plan = brinell.Plan("mine", stages, strength=strength)
    return brinell.evaluate("demo", DATA, brinell.Linf(eps), plan, progress=False, **options)


@pytest.mark.parametrize(
    ("attacks", "said"),
    [
        ([Square(steps=200)], "none of its attacks follows gradients"),
        ([APGD(steps=25)], "no attack without gradients"),
        ([PGD(steps=3), Square(steps=100)], "attacked with 4 gradients in all"),
        ([APGD(steps=25), Square(steps=10)], "asked 11 times in all"),
    ],
    ids=["no gradients", "only gradients", "three steps", "ten queries"],
)
def test_a_plan_that_only_calls_itself_strong_is_suspicious(attacks: list[Any], said: str) -> None:
    run = judged(attacks)
    (reason,) = [r for r in run.verdict.reasons if "is called strong, but" in r]
    assert run.verdict.level == "suspicious" and said in reason and reason.docs == "verdict.md#weak-plan"


def test_one_that_is_strong_enough_is_reliable() -> None:
    run = judged([PGD(steps=10), APGD(steps=15), Square(steps=60)])
    assert len(run.survivors()) and run.verdict.level == "reliable", str(run.verdict)


def test_where_nothing_stands_there_is_nothing_to_doubt() -> None:
    run = judged([PGD(steps=10)], eps=0.9)
    assert run.robust_accuracy.k == 0 and run.verdict.level == "reliable", str(run.verdict)


def test_an_audit_must_look_hard_too() -> None:
    """One step on all survivors would call a plan of one step audited."""
    lazy = judged([FGSM(), brinell.Stage(PGD(steps=1), share=1.0)], strength="audited", audit=1.0)
    (reason,) = [r for r in lazy.verdict.reasons if "is called strong, but" in r]
    assert reason.startswith("The audit of mine") and "attacked with" in reason
    sound = judged([FGSM(), brinell.Stage(APGD(steps=25), share=1.0)], strength="audited", audit=1.0)
    assert not [r for r in sound.verdict.reasons if "is called strong, but" in r]


@pytest.mark.parametrize("strength", [None, "mighty"])
def test_a_run_that_does_not_say_how_strong_its_plan_is_counts_as_weak(strength: Any, tmp_path: Path) -> None:
    run = judged([APGD(steps=25), Square(steps=60)], out=tmp_path / "run")
    assert run.verdict.level == "reliable", str(run.verdict)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["identity"]["plan"]["strength"] = strength
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    assert brinell.Run.open(run.path).verdict.level == "suspicious"
