"""What cannot be evaluated is refused with a typed error that says what to do, before anything is written."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import (
    L2,
    BrinellError,
    InputError,
    Linf,
    ModelError,
    PlanError,
    Problem,
    RunError,
    StorageError,
    ThreatError,
    attack,
    attacks,
    evaluate,
    wrap,
)
from brinell.core.threat import threat
from brinell.models.demo import demo_net

X, Y = (v[:8] for v in (brinell.data.load("demo", 8).x, brinell.data.load("demo", 8).y))


class Around(nn.Module):
    """The demo net with something done to its input and its output."""

    def __init__(
        self, before: Callable[[Tensor], Tensor] = lambda x: x, after: Callable[[Tensor], Tensor] = lambda z: z
    ):
        super().__init__()
        self.net, self.before, self.after = demo_net(), before, after
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.net(self.before(x)))


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.net(x)


def net_with_batch_statistics() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784, track_running_stats=False), nn.Linear(784, 10)).eval()


def five_classes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 5)).eval()


def run(
    model: Any = "demo", data: Any = (X, Y), threat: Any = None, plan: Any = "fgsm", **more: Any
) -> Callable[[Path], Any]:
    def go(out: Path) -> Any:
        return evaluate(model, data, threat or Linf(0.1), plan, out=out, progress=False, **more)

    return go


def changed(value: float) -> Tensor:
    x = X.clone()
    x[3, 0, 4, 5] = value
    return x


CASES: dict[str, tuple[type[BrinellError], str, Callable[[Path], Any]]] = {
    "above the box": (InputError, "wrap", lambda out: run(data=(3 * X, Y))(out)),
    "levels of pictures": (InputError, "divide them by 255", lambda out: run(data=(255 * X, Y))(out)),
    "below the box": (InputError, "inputs in [0, 1]", lambda out: run(data=((X - 0.5) / 0.2, Y))(out)),
    "one value outside": (InputError, "1.1", lambda out: run(data=(changed(1.1), Y))(out)),
    "nan": (InputError, "sample 3", lambda out: run(data=(changed(torch.nan), Y))(out)),
    "inf": (InputError, "sample 3", lambda out: run(data=(changed(torch.inf), Y))(out)),
    "integer images": (InputError, "/ 255", lambda out: run(data=((255 * X).to(torch.int32), Y))(out)),
    "one input without a batch": (InputError, "batch dimension", lambda out: run(data=(X[0, 0, 0], Y))(out)),
    "inputs the model cannot take": (ModelError, "(3, 8, 8)", run(demo_net(), (torch.rand(4, 3, 8, 8), Y[:4]))),
    "no samples": (InputError, "at least one", lambda out: run(data=(X[:0], Y[:0]))(out)),
    "too few labels": (InputError, "(8,)", lambda out: run(data=(X, Y[:5]))(out)),
    "one-hot labels": (InputError, "argmax", lambda out: run(data=(X, torch.eye(10)[Y]))(out)),
    "negative label": (InputError, "label -1", lambda out: run(data=(X, Y - Y - 1))(out)),
    "label above the classes": (InputError, "0..9", lambda out: run(data=(X, Y - Y + 10))(out)),
    "equal ids": (InputError, "distinct", lambda out: run(data=Problem(X, Y, ids=[0] * 8))(out)),
    "train mode": (ModelError, "net.eval()", run(demo_net().train())),
    "one layer in train mode": (ModelError, "layers.1", lambda out: run(_one_layer())(out)),
    "batch statistics": (ModelError, "other inputs", run(net_with_batch_statistics())),
    "subtracts the batch mean": (ModelError, "other inputs", run(Around(before=lambda x: (x - x.mean(0)).clamp(0, 1)))),
    "no_grad inside": (ModelError, "no_grad", run(NoGrad())),
    "detach inside": (ModelError, "gradients", run(Around(after=lambda z: z.detach()))),
    "argmax inside": (ModelError, "gradients", run(Around(after=lambda z: 2 * torch.eye(10)[z.argmax(1)]))),
    "marked as a black box": (ModelError, "gradients", run(wrap(demo_net(), differentiable=False))),
    "probabilities": (ModelError, "softmax", run(Around(after=lambda z: z.softmax(1)))),
    "logits with too many dimensions": (ModelError, "(32, classes)", run(Around(after=lambda z: z[..., None]))),
    "logits for one row only": (ModelError, "(32, classes)", run(Around(after=lambda z: z[:1]))),
    "mean for other channels": (ModelError, "per channel", run(wrap(demo_net(), mean=(0.1, 0.2, 0.3)))),
    "not a model": (ModelError, "my_model.py:make_net", run("resnet")),
    "not data": (InputError, "Problem(x, y)", run(data=3.14)),
    "no such data": (InputError, "Did you mean 'cifar10'", run(data="cifar")),
    "negative eps": (ThreatError, "eps > 0", lambda out: run(threat=Linf(-0.1))(out)),
    "zero eps": (ThreatError, "eps > 0", lambda out: run(threat=Linf(0))(out)),
    "nan eps": (ThreatError, "eps > 0", lambda out: run(threat=Linf(float("nan")))(out)),
    "eps that divides by zero": (ThreatError, "which divides by zero", lambda out: run(threat=Linf("8/0"))(out)),
    "eps that is no number": (ThreatError, "8/255", lambda out: run(threat=Linf("8/x"))(out)),
    "Linf eps in 0-255 units": (ThreatError, "8/255", lambda out: run(threat=Linf(8))(out)),
    "L2 eps in 0-255 units": (ThreatError, "divide", run(threat=L2(200))),
    "unknown norm": (ThreatError, "Linf", lambda out: run(threat=threat("L7", 0.1))(out)),
    "mask of another shape": (ThreatError, "mask", run(threat=Linf(0.1, mask=torch.ones(3, 8, 8)))),
    "eps for other samples": (ThreatError, "per sample (8)", run(threat=Linf(torch.full((5,), 0.1)))),
    "unknown plan": (PlanError, "'pgd20'", run(plan="pgd2")),
    "unknown loss": (PlanError, "'dlr'", lambda out: run(plan=attacks.APGD(loss="dlrr"))(out)),
    "no steps": (PlanError, "steps above 0", lambda out: run(plan=attacks.PGD(steps=0))(out)),
    "empty plan": (PlanError, "at least one stage", lambda out: run(plan=[])(out)),
    "equal stages": (PlanError, "own name", lambda out: run(plan=[attacks.FGSM(), attacks.FGSM()])(out)),
    "no restarts": (PlanError, "restart", lambda out: run(plan=brinell.Restarts(attacks.PGD(), 0))(out)),
    "no targets": (PlanError, "target", lambda out: run(plan=brinell.Targets(attacks.PGD(), 0))(out)),
    "rank of the true class": (PlanError, "runner-up", lambda out: run(plan=brinell.Stage(attacks.PGD(), (1,)))(out)),
    "another clean accuracy": (ModelError, "normalisation", run(data=(X, Y), expected_clean_accuracy=0.001)),
    "clean accuracy in percent": (InputError, "0.85", run(expected_clean_accuracy=85.0)),
    "unknown precision": (PlanError, "float32", run(precision="float7")),
    "unknown device": (InputError, "cpu", run(device="quantum")),
    "no slots": (InputError, "at least 1", run(slots=0)),
    "all weights are NaN": (ModelError, "weights", lambda out: run(_filled(torch.nan))(out)),
    "weights instead of a model": (ModelError, "load_state_dict", run(demo_net().state_dict())),
    "no model at all": (ModelError, "returns it", run(None)),
    "class instead of a model": (ModelError, "Linear(…)", run(nn.Linear)),
    "function that is no model": (ModelError, "(32, classes)", run(lambda x: x)),
    "function that fails": (ModelError, "one row of logits", run(lambda x: x @ None)),
    "file of weights": (ModelError, "loads these weights", run("weights.pt")),
    "model without weights": (ModelError, "load_state_dict", lambda out: run(demo_net().to("meta"))(out)),
    "model that returns no logits": (ModelError, "the keys scores", run(Around(after=lambda z: {"scores": z}))),
    "model that returns classes": (ModelError, "without argmax", run(Around(after=lambda z: z.argmax(1)))),
    "model of fewer classes": (InputError, "the model has 5 classes", run(five_classes())),
    "one output for ten classes": (InputError, "the model has 2 classes", run(Around(after=lambda z: z[:, :1]))),
    "channels last": (ModelError, "permute(0, 3, 1, 2)", run(data=(X.permute(0, 2, 3, 1), Y))),
    "no channels": (ModelError, "x[:, None]", run(data=(X[:, 0], Y))),
    "names as labels": (InputError, "numbers", run(data=(X, ["cat"] * 8))),
    "float labels": (InputError, "y.long()", run(data=(X, Y.float()))),
    "equal names": (InputError, "7 distinct", lambda out: run(data=Problem(X, Y, ids=list("abcdefga")))(out)),
    "inputs without labels": (InputError, "Problem(x, y)", run(data=X)),
    "number as threat": (ThreatError, "brinell.Linf('8/255')", run(threat=8 / 255)),
    "decimal comma": (ThreatError, "8/255", lambda out: run(threat=Linf("0,03"))(out)),
    "class instead of an attack": (PlanError, "brinell.attacks.PGD()", run(plan=attacks.PGD)),
    "classes in a list": (PlanError, "the class PGD", run(plan=[attacks.PGD])),
    "names in a list": (PlanError, "named plan without a list", run(plan=["pgd20"])),
    "misspelt plan": (PlanError, "Did you mean 'pgd20'?", run(plan="pdg20")),
    "clean accuracy in words": (InputError, "0.85", run(expected_clean_accuracy="85%")),
    "mean in 0-255 units": (ModelError, "divide both by 255", lambda out: wrap(demo_net(), mean=(125.3,), std=63.0)),
    "mean that is a word": (ModelError, "one number per channel", lambda out: wrap(demo_net(), mean="imagenet")),
    "number of samples in words": (InputError, "whole number", lambda out: brinell.data.load("demo", n="10")),
    "nothing to load": (InputError, "Problem(x, y)", lambda out: brinell.data.load(None)),
    "no such Run": (RunError, "brinell evaluate --out", lambda out: brinell.Run.open(out)),
    "comparison with no Run": (RunError, "brinell evaluate --out", lambda out: brinell.compare(out, out)),
    "resume from nowhere": (InputError, "out=", lambda out: evaluate("demo", (X, Y), Linf(0.1), "fgsm", resume=True)),
    "seed beyond 64 bits": (InputError, "seed", run(seed=2**70)),
}  # fmt: skip


def _filled(value: float) -> nn.Module:
    net = demo_net()
    nn.init.constant_(next(net.parameters()), value)
    return net


def _one_layer() -> nn.Module:
    net = demo_net()
    net.layers[1].train()
    return net


@pytest.mark.parametrize("case", CASES)
def test_refused_at_the_door(case: str, tmp_path: Path) -> None:
    kind, hint, go = CASES[case]
    with pytest.raises(BrinellError) as caught:
        go(tmp_path / "run")
    error = caught.value
    assert isinstance(error, kind)
    assert str(error) == f"expected {error.expected}, got {error.got}. {error.remedy}"
    assert all((error.expected, error.got, error.remedy))
    assert hint in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_absent_device(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cpu"):
        run(device="cuda")(tmp_path / "run")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("start", [X[:5], X[:, :, :14], X + torch.nan], ids=["few", "shape", "nan"])
def test_start_points_must_fit(start: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(8, 1, 28, 28\)"):
        attack("demo", (X, Y), Linf(0.1), attacks.PGD(steps=1), start=start)


def test_unknown_plan_names_the_nearest() -> None:
    with pytest.raises(PlanError) as caught:
        evaluate("demo", (X, Y), Linf(0.1), "apgdce", progress=False)
    assert "'apgd-ce'" in caught.value.remedy


def test_a_late_bad_label_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels in memory are all looked at before the first attack, whatever the size of a chunk."""
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", 4)
    y = Y.clone()
    y[-1] = 10
    with pytest.raises(InputError, match="label 10"):
        run(data=(X, y))(tmp_path / "run")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("defect", "model"),
    [
        ("train mode", demo_net().train()),
        ("probabilities", Around(after=lambda z: z.softmax(1))),
        ("mixed rows", net_with_batch_statistics()),
    ],
)
def test_allowed_defects_make_the_run_invalid(defect: str, model: nn.Module) -> None:
    result = evaluate(wrap(model, allow=[defect]), (X, Y), Linf(0.1), "fgsm", progress=False)
    failed = [c for c in result.checks if c["level"] == "fail"]
    assert defect in [c["name"] for c in failed]
    assert str(result.verdict).startswith("invalid")
    assert defect in str(result.verdict)


def test_allow_only_names_it_knows() -> None:
    with pytest.raises(ModelError, match="train mode"):
        wrap(demo_net(), allow=["everything"])


# ------------------------------------------------------------------------------------------------ folders


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run()(out)
    before = contents(out)
    with pytest.raises(RunError, match=r"choose another folder with out= \(--out\)"):
        run(seed=1)(out)
    assert contents(out) == before


def test_resuming_another_evaluation_names_every_difference(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run()(out)
    before = contents(out)
    other = wrap(demo_net(), std=0.9, name="other")
    with pytest.raises(RunError) as caught:
        run(other, (X.flip(0), Y), Linf(0.2), "pgd20", seed=3, resume=True)(out)
    for field in (
        "threat.eps",
        "plan.name",
        "plan.stages[0].hash",
        "model.fingerprint",
        "model.name",
        "data.fingerprint",
        "seed",
    ):
        assert field in caught.value.got
    assert "0.2" in caught.value.got
    assert contents(out) == before


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RunError, match="holds files but no Run"):
        run()(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"important"}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises((RunError, StorageError), match="folder"):
            run()(out)
    assert contents(tmp_path) == {"file": b"x"}
