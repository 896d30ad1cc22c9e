"""The binarization test of a Run's own plan, and what the verdict makes of it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, FAB, PGD, Square
from brinell.models.demo import demo_net
from brinell.ops import rng
from brinell.results.verdict import PAGE, RULES

pytestmark = pytest.mark.usefixtures("unchecked")
DOCS = Path(__file__).resolve().parents[2] / "docs"
# Complementary attacks with few steps; the strength of AutoAttack is not needed to see that nothing objects.
SOUND = brinell.plan(
    [APGD(steps=20), brinell.Targets(FAB(steps=6, targeted=True), 1), Square(steps=100)],
    name="sound",
    strength="standard",
)
THREAT = brinell.Linf(0.1)


class Scaled(nn.Module):
    """Logits so large that cross-entropy has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1e4 * self.net(x)


def judged(net: Any, data: Any, plan: Any, tmp_path: Path, threat: Any = THREAT) -> Any:
    run = brinell.evaluate(net, data, threat, plan, progress=False, out=tmp_path / "run")
    return brinell.reliability.test_run(run, net, data, threat, plan, n=8, inner=49, progress=False)


def test_a_plan_that_fails_makes_the_run_suspicious_and_the_reason_says_so(tmp_path: Path) -> None:
    blind = brinell.plan([PGD(5)], name="blind", strength="standard")
    run = judged(brinell.wrap(Scaled().eval()), brinell.data.load("demo", 8), blind, tmp_path)
    (check,) = [c for c in run.checks if c["name"] == "active test"]
    assert check["level"] == "warn"
    assert run.verdict.level == "suspicious"
    (reason,) = [r for r in run.verdict.reasons if "active test" in r]
    assert reason.docs == "verdict.md#check-that-warns"
    assert "Verdict: failed." in reason


def test_a_second_test_replaces_the_first(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    run = judged("demo", data, SOUND, tmp_path)
    rows = run.rows()
    again = brinell.reliability.test_run(run, "demo", data, THREAT, SOUND, n=4, inner=49, progress=False)
    assert [c["name"] for c in again.checks].count("active test") == 1
    assert again.rows().equals(rows)


def test_another_plan_than_the_runs_is_refused(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    run = brinell.evaluate("demo", data, THREAT, "fgsm", progress=False, out=tmp_path / "run")
    with pytest.raises(brinell.RunError, match="fgsm"):
        brinell.reliability.test_run(run, "demo", data, THREAT, "pgd20", progress=False)


def test_every_rule_has_its_place_on_the_page() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / PAGE).read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {anchor for _, anchor, _ in RULES} <= anchors


def world(classes: int, width: int) -> tuple[Any, brinell.Problem]:
    """A smooth network with keyed weights on the demo images, which it labels itself: nothing about it is unsound."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, classes))
    for i, p in enumerate(net.parameters()):
        noise = rng.normal(rng.keys(7, torch.tensor([i])), tuple(p.shape))[0]
        p.data.copy_(noise / (p.shape[-1] ** 0.5 if p.ndim > 1 else 10))
    x = brinell.data.load("demo", 8).x
    return brinell.wrap(net.eval().requires_grad_(False)), brinell.Problem(x, net(x).argmax(1))


@pytest.mark.parametrize(
    ("classes", "width"),
    [(10, 32), (10, 512), (2, 64), (100, 128)],
    ids=["small", "large", "two classes", "many classes"],
)
def test_no_false_alarm(classes: int, width: int, tmp_path: Path) -> None:
    net, data = world(classes, width)
    run = judged(net, data, SOUND, tmp_path, brinell.Linf(0.02))
    assert run.checks[-1]["level"] == "ok", run.checks[-1]["message"]
    assert run.verdict.level == "reliable", str(run.verdict)


def test_no_false_alarm_on_the_adversarially_trained_demo_model(tmp_path: Path) -> None:
    run = judged("demo", brinell.data.load("demo", 8), SOUND, tmp_path)
    assert run.verdict.level == "reliable", str(run.verdict)


def test_no_false_alarm_on_a_plain_network(tmp_path: Path) -> None:
    net = brinell.wrap(brinell.gallery.networks.plain())
    run = judged(net, brinell.gallery.networks.images(8), SOUND, tmp_path, brinell.Linf(0.03))
    assert run.verdict.level == "reliable", str(run.verdict)
