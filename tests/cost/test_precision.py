"""precision="auto": the decision for given numbers, what a probe sees, and what a Run remembers."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, evaluate
from brinell.core.execution import Execution
from brinell.cost import precision as precision_choice
from brinell.cost.precision import PrecisionChoice, PrecisionTrial, choose_precision, fastest_safe
from brinell.engine import precision
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare, stored_precision
from brinell.testing import LinearWorld

pytestmark = pytest.mark.usefixtures("unchecked")
BASE = PrecisionTrial("float32", 1.0, 10, 10)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([PrecisionTrial("bfloat16", 0.5, 10, 10)], "bfloat16"),
        ([PrecisionTrial("bfloat16", 0.9, 10, 10)], "bfloat16"),
        ([PrecisionTrial("bfloat16", 0.91, 10, 10)], "float32"),  # not worth it
        ([PrecisionTrial("bfloat16", 0.1, 9, 10)], "float32"),  # loses one
        ([PrecisionTrial("tf32", 0.7, 10, 10), PrecisionTrial("bfloat16", 0.5, 10, 10)], "bfloat16"),
        ([PrecisionTrial("tf32", 0.7, 10, 10), PrecisionTrial("bfloat16", 0.5, 8, 10)], "tf32"),
        ([PrecisionTrial("tf32", 0.5, 10, 10), PrecisionTrial("bfloat16", 0.7, 10, 10)], "tf32"),
        ([], "float32"),
    ],
)
def test_the_decision(others: list[PrecisionTrial], chosen: str) -> None:
    assert fastest_safe([BASE, *others]).precision == chosen


@pytest.mark.parametrize(("wanted", "chosen"), [(0, "float32"), (4, "float32"), (5, "bfloat16")])
def test_speed_without_evidence_is_not_enough(wanted: int, chosen: str) -> None:
    """Where float32 found next to nothing, nothing shows that less finds as much."""
    trials = [PrecisionTrial("float32", 1.0, wanted, wanted), PrecisionTrial("bfloat16", 0.1, wanted, wanted)]
    assert fastest_safe(trials).precision == chosen


def test_candidates_depend_on_the_device() -> None:
    assert precision.candidates(torch.device("cpu")) == ("float32", "bfloat16")
    assert precision.candidates(torch.device("cuda")) == ("float32", "tf32", "bfloat16")


class Clock:
    """Advances by so much per reading, and by less while questions are asked in bfloat16."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.quick = 0.0, False
        found = precision_choice._trial

        def watched(context: Any, stage: Any, c: Any, at: Any, name: str, *rest: Any) -> Any:
            self.quick = name == "bfloat16"
            return found(context, stage, c, at, name, *rest)

        monkeypatch.setattr(precision_choice, "_trial", watched)

    def __call__(self) -> float:
        self.now += 0.001 if self.quick else 0.01
        return self.now


def chosen(model: Any, world: LinearWorld, eps: float, plan: Any, clock: Clock) -> PrecisionChoice:
    clf = coerce.as_classifier(model)
    with precision.exact(clf.device):
        s = prepare(clf, coerce.as_problem((world.x, world.y)), Linf(eps), coerce.as_plan(plan), Execution())
        return choose_precision(s.context, s.stages, s.first_clean(), clock)


class Offset(nn.Module):
    """Linear behind a large offset: the same function in float32, a constant to within rounding in bfloat16."""

    def __init__(self, net: nn.Linear, offset: float = 1000.0) -> None:
        super().__init__()
        self.net, self.offset = nn.Linear(net.in_features, net.out_features), offset
        with torch.no_grad():
            self.net.weight.copy_(net.weight)
            self.net.bias.copy_(net.bias - offset * net.weight.sum(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.offset)


def linear(world: LinearWorld) -> nn.Linear:
    net = nn.Linear(world.weight.shape[1], world.weight.shape[0])
    with torch.no_grad():
        net.weight.copy_(world.weight)
        net.bias.copy_(world.bias)
    return net.eval()


def test_a_benign_model_is_asked_in_bfloat16(world: LinearWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is faster, by the clock given; a linear world with room to spare breaks alike in both."""
    made = chosen(
        linear(world), world, 1.5 * float(world.distance("Linf").max()), brinell.attacks.PGD(10), Clock(monkeypatch)
    )
    assert made.precision == "bfloat16"
    assert made.trials[0].wanted >= precision_choice.EVIDENCE
    assert "bfloat16" in str(made) and "adversarials" in str(made)


def test_a_model_that_bfloat16_blinds_is_asked_in_float32(
    world: LinearWorld, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chosen(Offset(linear(world)).eval(), world, 2 * eps, brinell.attacks.PGD(10), Clock(monkeypatch))
    assert made.precision == "float32"
    assert made.trials[1].lost > 0
    assert made.trials[1].seconds < made.trials[0].seconds


def test_a_black_box_plan_is_tried_with_its_own_attack(
    world: LinearWorld, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chosen(linear(world), world, 2 * eps, brinell.attacks.Square(steps=40).without_images(), Clock(monkeypatch))
    assert [t.precision for t in made.trials] == ["float32", "bfloat16"]


def test_nobody_to_try(world: LinearWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = LinearWorld(world.weight, world.bias, world.x, (world.y + 1) % 2)
    assert chosen(linear(world), wrong, 0.1, "fgsm", Clock(monkeypatch)) == PrecisionChoice("float32", ())


def fixed(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    def fake(*args: Any) -> PrecisionChoice:
        calls.append(name)
        return PrecisionChoice(name, (BASE, PrecisionTrial(name, 0.5, 10, 10)))

    monkeypatch.setattr(sys.modules["brinell.evaluation.prepare"], "choose_precision", fake)


def test_a_run_remembers_the_choice(
    world: LinearWorld, eps: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identity and rows hold what was chosen; resumed, it is taken and not measured again."""
    calls: list[str] = []
    fixed(monkeypatch, "bfloat16", calls)
    args: Any = (linear(world), (world.x, world.y), Linf(eps), brinell.attacks.PGD(4))
    run = evaluate(*args, precision="auto", out=tmp_path / "r", progress=False)
    assert calls == ["bfloat16"]
    assert run.manifest["identity"]["precision"] == "bfloat16"
    assert run.manifest["precision_choice"]["trials"][1]["seconds"] == 0.5
    assert any("chosen by a trial" in note for note in run.manifest["notes"])
    assert "bfloat16" in set(run.rows()["precision"].to_pylist())
    fixed(monkeypatch, "float32", calls)
    again = evaluate(*args, precision="auto", out=tmp_path / "r", resume=True, progress=False)
    assert calls == ["bfloat16"]
    assert again.rows().equals(run.rows())
    explicit = evaluate(*args, precision="bfloat16", progress=False)
    incidental = ["seconds", "adv_shard"]
    assert explicit.rows().drop_columns(incidental).equals(run.rows().drop_columns(incidental))


def test_what_is_remembered(tmp_path: Path) -> None:
    assert stored_precision("auto", None) == stored_precision("auto", tmp_path / "none") == "auto"
    assert stored_precision("tf32", tmp_path) == "tf32"


def test_the_probe_leaves_the_generator_alone(world: LinearWorld, eps: float) -> None:
    net = linear(world)
    before = torch.get_rng_state()
    evaluate(net, (world.x[:40], world.y[:40]), Linf(eps), "fgsm", precision="auto", progress=False)
    assert torch.equal(torch.get_rng_state(), before)
