"""Training as a whole: what it reaches in worlds with known answers, what it stores, and what it refuses."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import brinell
from brinell import BrinellError, InputError, Linf, ModelError, PlanError, RunError, ThreatError, attacks
from brinell.engine.events import Note
from brinell.ops import rng
from brinell.train import METHODS, Method, Network, Recipe, fit, load
from brinell.train.model import initialise
from brinell.train.progress import EpochFinished, Event, StepFinished, TrainingStarted

QUICK = Recipe(epochs=2, batch=16, lr=0.05)


def noise(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(n)), shape)


def linear() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    nn.init.zeros_(net[1].weight)
    nn.init.zeros_(net[1].bias)
    return net


def data(n: int = 48) -> tuple[Tensor, Tensor]:
    return noise(n, (1, 4, 4)), torch.arange(n) % 3


def two_features(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Coordinate 0 tells the class by ±0.25 around the middle, 95 % of the time: robust, but not perfect. The other 40
    tell it always, by ±0.02 each: perfect, and useless under perturbations of 0.1."""
    key = rng.keys(seed, torch.arange(n))
    y = torch.arange(n) % 2
    sign = 2.0 * y - 1
    honest = torch.where(rng.uniform(rng.fold(key, 1), (1,))[:, 0] < 0.95, sign, -sign)
    weak = 0.02 * sign[:, None] + 0.005 * rng.normal(rng.fold(key, 2), (40,))
    return torch.cat([0.5 + 0.25 * honest[:, None], 0.5 + weak], 1), y


def centred() -> nn.Module:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(41, 2)
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

        def forward(self, x: Tensor) -> Any:
            return self.linear(10 * (x - 0.5))

    return Centred()


SPURIOUS = Recipe(epochs=4, batch=50, lr=0.02, average=0.8, schedule="one-cycle", weight_decay=0.0)


def linear_accuracy(classifier: Any, eps: float) -> tuple[float, float]:
    """Clean and robust accuracy in closed form: z_t − z_y grows by eps · ‖w_t − w_y‖₁, since the box is far."""
    x, y = two_features(100, seed=1)
    w, z = classifier.module.linear.weight.double() * 10, classifier.forward(x).logits.double()
    margin = (z[:, 1] - z[:, 0]) * (2 * y - 1)
    lost = eps * (w[1] - w[0]).abs().sum()
    return float((margin > 0).double().mean()), float((margin > lost).double().mean())


def test_standard_training_takes_what_is_not_robust(tmp_path: Path) -> None:
    """Perfect on clean data, and nothing left below the margin of the robust feature."""
    recipe = replace(SPURIOUS, epochs=20)
    data = two_features(300, seed=0)
    made = fit(centred(), data, Linf(0.1), "standard", recipe, out=tmp_path / "t", validation=0, progress=False)
    clean, robust = linear_accuracy(made.classifier, 0.1)
    assert clean > 0.99
    assert robust == 0.0


@pytest.mark.parametrize("method", ["pgd", "trades", "mm3-f10", "fgsm-rs"])
def test_adversarial_training_finds_the_robust_feature(method: str, tmp_path: Path) -> None:
    """As good as the robust feature alone, which nothing below its margin of 0.25 can touch."""
    data, threat = two_features(300, seed=0), Linf(0.1)
    made = fit(centred(), data, threat, method, SPURIOUS, out=tmp_path / "t", validation=0, progress=False)
    test = two_features(100, seed=1)
    honest = float(((test[0][:, 0] > 0.5).long() == test[1]).double().mean())
    assert honest > 0.9
    assert linear_accuracy(made.classifier, 0.1)[1] == honest
    # And the evaluation agrees with the closed form.
    run = brinell.evaluate(made.classifier, test, threat, "pgd20", out=tmp_path / "run", progress=False)
    assert float(run.robust_accuracy) == honest


@pytest.mark.parametrize("norm", [brinell.Linf(0.05), brinell.L2(0.2), brinell.L1(0.5)], ids=str)
def test_separable_data_become_robust_below_the_margin(norm: Any, tmp_path: Path) -> None:
    """Two points' clouds at 0.3 and 0.7 along the diagonal: every eps used is below their margin in its norm."""
    y = torch.arange(32) % 2
    x = 0.3 + 0.4 * y[:, None] + 0.02 * (noise(32, (4,)) - 0.5)
    attack, recipe = attacks.PGD(3, rel_step=0.5), Recipe(epochs=10, batch=16, lr=0.5, average=0.5)
    net = nn.Linear(4, 2)
    made = fit(net, (x, y), norm, attack, recipe, out=tmp_path / "t", validation=0, progress=False)
    run = brinell.evaluate(
        made.classifier, (x, y), norm, brinell.attacks.APGD(20), out=tmp_path / "run", progress=False
    )
    assert float(run.robust_accuracy) == 1.0


def small() -> nn.Module:
    """A convolution, batch normalisation, and a linear layer."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    initialise(net, 0)
    return net


def test_what_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made = fit(
        small, tiny_images(), Linf("8/255"), "fgsm-rs", QUICK, out=folder, validation=8, plan="fgsm", progress=False
    )
    assert sorted(f.name for f in folder.iterdir()) == [
        ".lock", "checkpoint.pt", "config.json", "curve.csv", "last.safetensors", "model.safetensors",
    ]  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["identity"]["threat"]["norm"] == "Linf"
    assert config["identity"]["method"]["attack"] == {
        "type": "PGD", "steps": 1, "rel_step": 1.25, "loss": "ce", "momentum": 0.0, "random_start": True,
        "density": 0.01,
    }  # fmt: skip
    again, x = load(folder, small()), torch.zeros(2, 3, 8, 8)
    assert torch.equal(again.forward(x).logits, made.classifier.forward(x).logits)
    assert again.modes() == []
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert {"model", "average", "optimiser", "best"} <= set(checkpoint)
    assert checkpoint["epoch"] == 2
    assert not torch.equal(checkpoint["model"]["0.weight"], checkpoint["average"]["0.weight"])
    last = load_file(folder / "last.safetensors")
    assert torch.equal(last["0.weight"], checkpoint["average"]["0.weight"])
    # Statistics of batch normalisation are averaged with the weights, and have been estimated.
    assert torch.equal(last["1.running_mean"], checkpoint["average"]["1.running_mean"])
    assert last["1.running_mean"].abs().min() > 0
    assert not torch.equal(last["1.running_mean"], checkpoint["model"]["1.running_mean"])
    assert last["1.num_batches_tracked"] == 2
    assert len((folder / "curve.csv").read_text().splitlines()) == 3
    assert [row.n for row in made.curve] == [8, 8]
    assert made.curve[0].forwards == 16 * 1 * 2  # one batch of 16 from 24 samples, two forwards each


def test_validation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", validation=8, plan="fgsm", progress=False)
    # Compilers of torch may put a cache of their own here.
    assert list((tmp_path / "temporary").glob("brinell*")) == []


def test_a_network_by_name(tmp_path: Path) -> None:
    x, y = brinell.data.load("demo", 32).x, brinell.data.load("demo", 32).y
    recipe = Recipe(epochs=1, batch=16, lr=0.01)
    made = [
        fit("demo", (x, y), Linf(0.1), "fgsm-rs", recipe, out=tmp_path / str(i), validation=0, progress=False)
        for i in range(2)
    ]
    # Initial weights come from the seed: two trainings are one.
    states = [load(m.path).module.state_dict() for m in made]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    assert config["identity"]["model"]["network"] == Network("demo", 10, 1).to_json()


def tiny_images() -> tuple[Tensor, Tensor]:
    return (255 * noise(32, (3, 8, 8))).to(torch.uint8), torch.arange(32) % 3


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """A learning rate that ruins the weights after the first epoch: the model is that of the best epoch."""
    events: list[Event] = []
    y = torch.arange(96) % 3
    x = (0.4 * nn.functional.one_hot(y, 16) + 0.2 * noise(96, (16,))).view(96, 1, 4, 4)
    recipe = Recipe(epochs=6, batch=16, lr=0.3, average=0.0, patience=3)
    made = fit(
        linear(),
        (x, y),
        Linf(0.05),
        recipe=recipe,
        out=tmp_path / "t",
        validation=32,
        plan="fgsm",
        progress=events.append,
    )
    counts = [(row.robust or 0, row.clean or 0) for row in made.curve]
    best = counts.index(max(counts))
    assert best < len(counts) - 1  # or this test shows nothing
    assert made.best.epoch == best + 1
    assert len(made.curve) == min(6, best + 1 + 3)
    kept = torch.load(tmp_path / "t" / "checkpoint.pt", weights_only=True)["best"]
    assert torch.equal(made.classifier.module[1].weight, kept["1.weight"])
    told = [e for e in events if isinstance(e, EpochFinished)]
    assert [e.best for e in told] == [max(counts[: i + 1]) == c and c not in counts[:i] for i, c in enumerate(counts)]
    assert isinstance(next(e for e in events if not isinstance(e, Note)), TrainingStarted)
    steps = [e.step for e in events if isinstance(e, StepFinished)]
    assert steps == list(range(1, len(steps) + 1))


def test_recipe_options_reach_the_weights(tmp_path: Path) -> None:
    """One step of SGD by hand: smoothing, clipping and decay included."""
    x, y = data(16)
    net = linear()
    recipe = Recipe(
        epochs=1, batch=16, lr=0.5, schedule="constant", average=0.0, clip=0.01, label_smoothing=0.2, weight_decay=0.1
    )
    made = fit(net, (x, y), Linf(0.1), "standard", recipe, out=tmp_path / "t", validation=0, progress=False)
    w = torch.zeros(3, 16, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)
    nn.functional.cross_entropy(x.flatten(1) @ w.T + b, y, label_smoothing=0.2).backward()
    assert w.grad is not None and b.grad is not None
    norm = torch.cat([w.grad.flatten(), b.grad]).norm()
    torch.testing.assert_close(made.classifier.module[1].weight, -0.5 * 0.01 * w.grad / norm, rtol=1e-4, atol=1e-8)
    assert torch.equal(net[1].weight, torch.zeros(3, 16))  # the user's module is left alone


def test_bfloat16_trains(tmp_path: Path) -> None:
    y = torch.arange(64) % 3
    x = (0.5 * nn.functional.one_hot(y, 16) + 0.1 * noise(64, (16,))).view(64, 1, 4, 4)
    recipe = Recipe(epochs=4, batch=16, lr=0.5, precision="bfloat16")
    made = fit(linear(), (x, y), Linf(0.05), recipe=recipe, out=tmp_path / "t", validation=0, progress=False)
    assert made.classifier.dtypes() == {"float32"}
    run = brinell.evaluate(made.classifier, (x, y), Linf(0.05), "pgd20", out=tmp_path / "r", progress=False)
    assert float(run.robust_accuracy) == 1.0


def test_validation_data_of_its_own_and_other_methods(tmp_path: Path) -> None:
    x, y = data()
    mine = Method("mine", attacks.APGD(3, "minimum-margin"), targets=2, keep="best")
    for i, method in enumerate((mine, attacks.Square(steps=4), attacks.FGSM())):
        made = fit(linear(), (x, y), brinell.L2(0.3) if i else Linf(0.1), method, QUICK, out=tmp_path / f"{i}",
                   validation=data(10), plan=attacks.FGSM(), progress=False)  # fmt: skip
        assert made.curve[-1].n == 10


def test_a_users_module_is_needed_again(tmp_path: Path) -> None:
    made = fit(linear, data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", validation=0, progress=False)
    with pytest.raises(ModelError, match=r"brinell\.train\.load"):
        load(tmp_path / "t")
    again = load(tmp_path / "t", linear(), weights="last")
    assert torch.equal(again.module[1].weight, made.classifier.module[1].weight)
    with pytest.raises(ModelError, match="that was trained"):
        load(tmp_path / "t", nn.Linear(2, 2))
    with pytest.raises(PlanError, match="best, last"):
        load(tmp_path / "t", linear(), weights="first")


def test_normalisation_of_a_wrapped_module_is_trained_through(tmp_path: Path) -> None:
    x, y = data(16)
    recipe = Recipe(epochs=1, batch=16, lr=0.5, schedule="constant", average=0.0)
    wrapped = brinell.wrap(linear(), mean=0.5, std=0.25)
    made = fit(wrapped, (x, y), Linf(0.1), "standard", recipe, out=tmp_path / "t", validation=0, progress=False)
    by_hand = nn.functional.one_hot(y, 3).float().sub(1 / 3).T @ ((x.flatten(1) - 0.5) / 0.25) / 16 * 0.5
    torch.testing.assert_close(made.classifier.module[1].weight, by_hand, rtol=1e-4, atol=1e-6)
    assert made.classifier.mean is not None


# ------------------------------------------------------------------------------------------------------------ refusals


class Blind(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x


FLAT = noise(8, (4,)), torch.arange(8) % 2
CASES: dict[str, tuple[dict[str, Any], type[BrinellError], str]] = {
    "unknown network": ({"model": "resnet19"}, PlanError, "'resnet18'"),
    "no model": ({"model": 7}, ModelError, "a network"),
    "no weights": ({"model": Blind()}, ModelError, "trainable weights"),
    "frozen weights": ({"model": linear().requires_grad_(False)}, ModelError, "trainable weights"),
    "other shape": ({"model": nn.Linear(3, 2)}, ModelError, "shape"),
    "label out of range": ({"data": (noise(9, (1, 4, 4)), torch.arange(9))}, InputError, r"labels in 0\.\.2"),
    "one sample": ({"data": (noise(1, (1, 4, 4)), torch.zeros(1, dtype=torch.long))}, InputError, "at least 2 samples"),
    "missing file": ({"data": "nothing.npz"}, InputError, "does not exist"),
    "flat data for a network": ({"model": "resnet18", "data": FLAT}, InputError, "images"),
    "eps too large": ({"threat": brinell.L2(5.0)}, ThreatError, "diameter"),
    "many eps": ({"threat": Linf(torch.full((48,), 0.1))}, ThreatError, "one eps"),
    "too few classes": ({"method": attacks.APGD(5, "dlr")}, PlanError, "margin instead"),
    "unknown method": ({"method": "pdg"}, PlanError, "'pgd'"),
    "unknown plan": ({"plan": "fgms", "validation": 8}, PlanError, "'fgsm'"),
    "all held out": ({"validation": 48}, InputError, "between 0 and 47"),
    "other validation": ({"validation": (noise(4, (2, 4, 4)), torch.arange(4) % 2)}, InputError, "shape and classes"),
    "patience alone": ({"recipe": Recipe(patience=2)}, PlanError, "patience"),
    "crops of rows": ({"model": nn.Linear(4, 2), "data": FLAT, "recipe": Recipe(crop=1)}, InputError, "crops"),
    "demo on other images": ({"model": "demo"}, ModelError, "shape"),
    "unknown device": ({"device": "quantum"}, InputError, "device='cpu'"),
    "negative time": ({"checkpoint_every": -1.0}, InputError, "seconds"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused_before_anything_is_written(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes, error, hint = CASES[case]
    call: dict[str, Any] = {
        "model": linear(),
        "data": data(),
        "threat": Linf(0.1),
        "recipe": QUICK,
        "validation": 0,
        **changes,
    }
    with pytest.raises(error, match=hint):
        fit(**call, out=tmp_path / "t", progress=False)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(("seconds", "hint"), [(0.0, "after step 1 of epoch 1"), (1e9, "by step 2 of epoch 1")])
def test_divergence_stops_with_a_remedy(tmp_path: Path, seconds: float, hint: str) -> None:
    """Noticed in the weights where they are about to be stored, else in the next loss."""
    call: dict[str, Any] = {"out": tmp_path / "t", "validation": 0, "progress": False, "checkpoint_every": seconds}
    recipe = Recipe(epochs=3, batch=16, lr=1e38, schedule="constant")
    with pytest.raises(ModelError, match="lower lr") as told:
        fit(linear(), data(), Linf(0.1), recipe=recipe, **call)
    assert hint in str(told.value)
    # What was stored before is sound.
    stored = torch.load(tmp_path / "t" / "checkpoint.pt", weights_only=True)
    assert bool(stored["loss"].isfinite())


def test_folders_in_use(tmp_path: Path) -> None:
    call: dict[str, Any] = {"validation": 0, "progress": False}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"thesis\.tex"):
        fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "other", **call)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="a file"):
        fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "file", **call)
    fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", **call)
    with pytest.raises(RunError, match="--resume"):
        fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", **call)
    before = (tmp_path / "t" / "model.safetensors").read_bytes()
    made = fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", resume=True, **call)
    assert len(made.curve) == 2
    assert (tmp_path / "t" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"recipe": Recipe(epochs=2, batch=16, lr=0.06)}, ["recipe.lr 0.06 instead of 0.05"]),
        ({"threat": Linf(0.2)}, ["threat.eps 0.2 instead of 0.1"]),
        ({"method": "fgsm-rs"}, ["method.name fgsm-rs instead of pgd", "method.attack.steps 1 instead of 10"]),
        ({"data": data(40)}, ["data.n 40 instead of 48", "data.fingerprint"]),
        ({"validation": 4, "plan": "fgsm"}, ["plan.name", "validation.n"]),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 4))}, ["model.classes 4 instead of 3", "model.structure"]),
    ],
    ids=["lr", "eps", "method", "data", "validation", "model"],
)
def test_resume_with_other_settings_names_them(changes: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    call: dict[str, Any] = {"model": linear(), "data": data(), "threat": Linf(0.1), "recipe": QUICK, "validation": 0}
    fit(**call, out=tmp_path / "t", progress=False)
    with pytest.raises(RunError) as told:
        fit(**{**call, **changes}, out=tmp_path / "t", resume=True, progress=False)
    assert all(name in str(told.value) for name in names)


def test_damaged_files(tmp_path: Path) -> None:
    call: dict[str, Any] = {"recipe": QUICK, "validation": 0, "progress": False, "out": tmp_path / "t"}
    fit(linear(), data(), Linf(0.1), **call)
    (tmp_path / "t" / "checkpoint.pt").write_bytes(b"torn")
    with pytest.raises(RunError, match="readable checkpoint"):
        fit(linear(), data(), Linf(0.1), resume=True, **call)
    (tmp_path / "t" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(RunError, match="readable weights"):
        load(tmp_path / "t", linear())
    (tmp_path / "t" / "config.json").write_text("{}")
    with pytest.raises(RunError, match="format"):
        load(tmp_path / "t", linear())


def test_notes(tmp_path: Path) -> None:
    events: list[Event] = []
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 3))
    recipe = Recipe(epochs=1, batch=20)
    fit(net, data(), Linf(0.1), "mm3-f10", recipe, out=tmp_path / "t", validation=0, progress=events.append)
    texts = " ".join(e.text for e in events if isinstance(e, Note))
    assert "dropout" in texts and "8 random samples" in texts and "2 targets instead of 3" in texts


@pytest.mark.parametrize("tty", [True, False])
def test_progress_is_shown(tty: bool, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if tty:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    fit(linear(), data(), Linf(0.1), recipe=QUICK, out=tmp_path / "t", validation=8, plan="fgsm")
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 2/2: loss" in err and "robust" in err and "n = 8" in err


def test_methods_are_data_with_citations() -> None:
    assert set(METHODS) == {"standard", "pgd", "cw", "trades", "mm3", "mm3-f10", "mm3-f20", "fgsm-rs"}
    assert all(m.citation for m in METHODS.values() if m.attack is not None)
    costs = {name: m.cost(10) for name, m in METHODS.items()}
    assert costs == {
        "standard": (1, 1), "pgd": (11, 11), "cw": (11, 11), "trades": (13, 12), "mm3": (65, 61), "mm3-f10": (35, 31),
        "mm3-f20": (65, 61), "fgsm-rs": (2, 2),
    }  # fmt: skip


def test_numpy_bytes_and_floats_agree(tmp_path: Path) -> None:
    x, y = tiny_images()
    made = [
        fit(small(), (values, y.numpy()), Linf("8/255"), "fgsm-rs", Recipe(epochs=1, batch=16, crop=1, flip=True),
            out=tmp_path / name, validation=0, progress=False)
        for name, values in (("bytes", x.numpy()), ("floats", (x.float() / 255).numpy()))
    ]  # fmt: skip
    states = [m.classifier.module.state_dict() for m in made]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert np.isfinite(made[0].curve[0].loss)


@pytest.mark.parametrize(
    "identity", [None, {}, {"model": 3}, {"model": {"network": 3}}, {"model": {"network": {"name": "demo", "size": 3}}},
                 {"model": {"network": {"name": "resnet18", "classes": 10**9, "channels": 1}}},
                 {"model": {"network": {"name": "demo", "classes": "10"}}}],
)  # fmt: skip
def test_the_folder_of_a_stranger_is_refused(identity: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"brinell_training": 1, "identity": identity}))
    state = {name: value.clone() for name, value in brinell.models.demo.demo_net().state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(BrinellError):
        brinell.train.load(tmp_path)
