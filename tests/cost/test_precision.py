"""What a trial of lower precision shows, and which precision a Run takes over."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, evaluate
from brinell.core.execution import Blocks, Execution
from brinell.cost.precision import EVIDENCE, PrecisionChoice, PrecisionTrial, lowest_safe, try_precisions
from brinell.cost.settings import GpuSettings
from brinell.engine import precision
from brinell.environment import environment
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare, stored_settings, with_settings
from brinell.results.format.manifest import Environment, Identity
from brinell.testing import LinearWorld

# The modules: `brinell.evaluation.evaluate` is also a function.
preparing: Any = sys.modules["brinell.evaluation.prepare"]
evaluating: Any = sys.modules["brinell.evaluation.evaluate"]
settled = preparing._settled
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("tf32", "bfloat16", "chosen"),
    [(10, 10, "bfloat16"), (10, 9, "tf32"), (9, 10, "bfloat16"), (9, 9, "float32")],
)
def test_the_lowest_precision_that_loses_nothing(tf32: int, bfloat16: int, chosen: str) -> None:
    found = [("float32", 10), ("tf32", tf32), ("bfloat16", bfloat16)]
    assert lowest_safe([PrecisionTrial(name, 1.0, k, 10) for name, k in found]).precision == chosen


@pytest.mark.parametrize("wanted", [0, EVIDENCE - 1])
def test_a_trial_that_breaks_nothing_is_no_reason_for_float32(wanted: int) -> None:
    choice = lowest_safe([PrecisionTrial("float32", 1.0, wanted, wanted)])
    assert choice.precision == "tf32" and "too few" in str(choice)


def test_candidates_depend_on_the_device() -> None:
    assert precision.candidates(torch.device("cpu")) == ("float32", "bfloat16")
    assert precision.candidates(torch.device("cuda")) == ("float32", "tf32", "bfloat16")


class Clock:
    """Advances by so much per reading."""

    def __init__(self, step: float = 0.01) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def tried(model: Any, world: LinearWorld, eps: float, plan: Any, seconds: float = 9.0) -> PrecisionChoice:
    clf = coerce.as_classifier(model)
    with precision.exact(clf.device):
        s = prepare(clf, coerce.as_problem((world.x, world.y)), Linf(eps), coerce.as_plan(plan), Execution())
        names = precision.candidates(clf.device)
        return try_precisions(s.context, s.stages, s.first_clean(), seconds, names, Clock())


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


def test_a_benign_model_is_asked_in_bfloat16(world: LinearWorld) -> None:
    """A linear world with room to spare breaks alike in both."""
    made = tried(linear(world), world, 1.5 * float(world.distance("Linf").max()), brinell.attacks.PGD(10))
    assert made.precision == "bfloat16"
    assert made.trials[0].wanted >= EVIDENCE
    assert "bfloat16" in str(made) and "adversarials" in str(made)


def test_a_model_that_bfloat16_blinds_is_asked_in_float32(world: LinearWorld, eps: float) -> None:
    made = tried(Offset(linear(world)).eval(), world, 2 * eps, brinell.attacks.PGD(10))
    assert made.precision == "float32"
    assert made.trials[1].lost > 0


def test_a_black_box_plan_is_tried_with_its_own_attack(world: LinearWorld, eps: float) -> None:
    made = tried(linear(world), world, 2 * eps, brinell.attacks.Square(steps=40).without_images())
    assert [t.precision for t in made.trials] == ["float32", "bfloat16"]


def test_nobody_to_try(world: LinearWorld) -> None:
    wrong = LinearWorld(world.weight, world.bias, world.x, (world.y + 1) % 2)
    assert tried(linear(wrong), wrong, 0.1, "fgsm") == PrecisionChoice("tf32", ())


def test_a_trial_ends_in_time(world: LinearWorld, eps: float) -> None:
    """The clock advances at every look: with less time there are fewer of them, and fewer adversarials."""
    long, short = (tried(linear(world), world, 2 * eps, brinell.attacks.PGD(40), s) for s in (9.0, 0.3))
    assert short.trials[0].wanted <= long.trials[0].wanted


def test_auto_is_float32_on_a_cpu_at_once(world: LinearWorld, eps: float) -> None:
    net = linear(world)
    before = torch.get_rng_state()
    run = evaluate(net, (world.x[:40], world.y[:40]), Linf(eps), "fgsm", progress=False)
    assert run.identity.precision == "float32" and "precision_choice" not in run.manifest
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_left_open_is_taken_over(tmp_path: Path) -> None:
    """From a Run of this or an earlier version; what the user asks for stays."""
    gpu = Environment.read({"cuda": "13.0"})
    stored: dict[str, Any] = {"precision": "tf32", "execution": "compile", "block": 64, "other_blocks": {"few": 8}}
    taken = with_settings(Execution(), Identity.read(stored), gpu)
    assert (taken.precision, taken.mode, taken.blocks) == ("tf32", "compile", Blocks(64, {"few": 8}))
    asked = with_settings(Execution(precision="bfloat16", mode="graph"), Identity.read(stored), gpu)
    assert (asked.precision, asked.mode, asked.blocks) == ("bfloat16", "graph", Blocks(64, {"few": 8}))
    earlier = with_settings(Execution(), Identity.read({"block": 256}), gpu)
    assert (earlier.precision, earlier.mode, earlier.blocks) == ("float32", "graph", Blocks(256))
    elsewhere = with_settings(Execution(), Identity.read({"precision": "bfloat16", "block": 32}), Environment.read({}))
    assert (elsewhere.precision, elsewhere.mode, elsewhere.blocks) == ("bfloat16", "auto", None)
    assert stored_settings(Execution(), None) == stored_settings(Execution(), tmp_path / "none") == Execution()


def as_chosen(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    """Let evaluations on this machine choose a precision, as on a GPU."""
    trials = (PrecisionTrial("float32", 1.0, 10, 10), PrecisionTrial(name, 0.5, 10, 10))

    def choose(*_: Any) -> GpuSettings:
        calls.append(name)
        return GpuSettings(name, False, Blocks(32), f"Precision {name}: soonest.", PrecisionChoice(name, trials))

    monkeypatch.setattr(preparing, "_settled", lambda how, *_: None if how.precision == "auto" else settled(how, *_))
    monkeypatch.setattr(preparing, "_chosen", choose)
    opened = ("precision", "execution", "block", "other_blocks")
    monkeypatch.setattr(preparing, "_open_settings", lambda how, _: opened if how.precision == "auto" else ())
    monkeypatch.setattr(evaluating, "environment", lambda *a: {**environment(*a), "cuda": "13.0"})


def test_a_run_remembers_the_choice(
    world: LinearWorld, eps: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identity, rows and notes hold what was chosen; resumed or found again, it is taken and not chosen again."""
    calls: list[str] = []
    as_chosen(monkeypatch, "bfloat16", calls)
    monkeypatch.chdir(tmp_path)
    args: Any = (linear(world), (world.x, world.y), Linf(eps), brinell.attacks.PGD(4))
    run = evaluate(*args, out="auto", progress=False)
    assert calls == ["bfloat16"] and run.identity.precision == "bfloat16"
    assert run.manifest["precision_choice"]["trials"][1]["seconds"] == 0.5
    assert "Precision bfloat16: soonest." in run.manifest["notes"]
    assert "bfloat16" in set(run.rows()["precision"].to_pylist())
    as_chosen(monkeypatch, "float32", calls)
    monkeypatch.setattr(preparing, "resolve_execution", lambda mode, device: "eager")
    again = evaluate(*args, out=run.path, resume=True, progress=False)
    assert calls == ["bfloat16"] and again.rows().equals(run.rows())
    found = evaluate(*args, out="auto", progress=False)
    assert found.path == run.path and calls == ["bfloat16", "float32"]
    explicit = evaluate(*args, precision="bfloat16", progress=False)
    incidental = ["seconds", "adv_shard"]
    assert explicit.rows().drop_columns(incidental).equals(run.rows().drop_columns(incidental))
    with pytest.raises(brinell.RunError, match="precision"):
        evaluate(*args, precision="float32", out=run.path, resume=True, progress=False)


def test_an_interrupted_run_in_the_default_folder_goes_on_with_its_settings(
    world: LinearWorld, eps: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_chosen(monkeypatch, "bfloat16", [])
    monkeypatch.chdir(tmp_path)
    args: Any = (linear(world), (world.x, world.y), Linf(eps), brinell.attacks.PGD(4))
    run = evaluate(*args, out="auto", progress=False)
    whole = run.rows()
    for shard in sorted((run.path / "rows").iterdir())[1:]:
        shard.unlink()
    manifest = json.loads((run.path / "manifest.json").read_text())
    for field in ("checksums", "sha256"):
        manifest.pop(field)
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "finished": False}))
    as_chosen(monkeypatch, "float32", [])
    again = evaluate(*args, out="auto", resume=True, progress=False)
    assert again.path == run.path
    assert again.rows().drop_columns(["seconds", "adv_shard"]).equals(whole.drop_columns(["seconds", "adv_shard"]))
