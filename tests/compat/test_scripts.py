"""Scripts written for AutoAttack and RobustBench, after their public interfaces, run with one import changed."""

import argparse
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.compat import robustbench
from brinell.compat.robustbench.data import load_cifar10, load_cifar10c, load_clean_dataset
from brinell.compat.robustbench.model_zoo import model_dicts
from brinell.compat.robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel
from brinell.compat.robustbench.utils import clean_accuracy, load_model
from brinell.models.demo import demo_net

N = 40


class Colour(nn.Module):
    """The demonstration model for coloured images of 32 by 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: Tensor) -> Any:
        return self.net(nn.functional.interpolate(x.mean(1, keepdim=True), size=28))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """CIFAR-10 and fog of CIFAR-10-C as their archives unpack, with images of the demonstration."""
    monkeypatch.chdir(tmp_path)
    problem = brinell.data.load("demo", N)
    x = (255 * nn.functional.interpolate(problem.x, size=32).expand(-1, 3, -1, -1)).round().byte()
    batches, corrupted = tmp_path / "data" / "cifar-10-batches-py", tmp_path / "data" / "CIFAR-10-C"
    batches.mkdir(parents=True)
    (batches / "test_batch").write_bytes(
        pickle.dumps({b"data": x.flatten(1).numpy(), b"labels": problem.y.tolist()}, protocol=2)
    )
    corrupted.mkdir()
    # Severity s is in rows 10,000 (s − 1) and on: zeros until the fifth.
    foggy = np.zeros((50_000, 32, 32, 3), dtype=np.uint8)
    foggy[40_000 : 40_000 + N] = x.permute(0, 2, 3, 1).numpy() // 2
    np.save(corrupted / "fog.npy", foggy)
    np.save(corrupted / "labels.npy", np.resize(problem.y.numpy(), 50_000))
    labels = np.zeros(50_000, dtype=np.int64)
    labels[40_000 : 40_000 + N] = problem.y.numpy()
    np.save(corrupted / "labels.npy", labels)
    monkeypatch.setattr(
        "brinell.models.zoo.load", lambda name, folder=None, checkpoint=None: brinell.wrap(Colour().eval(), name=name)
    )
    return x.float() / 255, problem.y


def evaluation_script(args: argparse.Namespace, x_test: Tensor, y_test: Tensor) -> Any:
    """The shape of AutoAttack's example: arguments, a model, `no_grad`, a file with what was found."""
    from brinell.compat.autoattack import AutoAttack  # was: from autoattack import AutoAttack

    model = demo_net()
    model.eval()
    args.save_dir.mkdir(exist_ok=True)
    adversary = AutoAttack(model, norm=args.norm, eps=args.epsilon, log_path=str(args.log), version=args.version)
    if args.version == "custom":
        adversary.attacks_to_run = ["apgd-ce", "fab"]
        adversary.apgd.n_restarts = 2
        adversary.fab.n_restarts = 2
        adversary.apgd.n_iter = adversary.fab.n_iter = 2
    with torch.no_grad():
        if not args.individual:
            found = adversary.run_standard_evaluation(x_test, y_test, bs=args.batch_size, state_path=args.state)
        else:
            found = adversary.run_standard_evaluation_individual(x_test, y_test, bs=args.batch_size)
    torch.save({"adv_complete": found}, args.save_dir / f"{args.version}.pth")
    return found


@pytest.mark.parametrize("individual", [False, True])
def test_the_example_of_autoattack(individual: bool, tmp_path: Path, capsys: Any) -> None:
    x, y = brinell.data.load("demo", 12)
    args = argparse.Namespace(
        norm="Linf", epsilon=0.15, version="custom", individual=individual, batch_size=5, state=tmp_path / "state",
        save_dir=tmp_path / "results", log=tmp_path / "log.txt",
    )  # fmt: skip
    found = evaluation_script(args, x, y)
    stored = torch.load(args.save_dir / "custom.pth", weights_only=True)["adv_complete"]
    printed = capsys.readouterr().out
    assert printed == args.log.read_text() and "accuracy" in printed
    if individual:
        assert list(found) == list(stored) == ["apgd-ce", "fab"]
        assert "robust accuracy by APGD-CE" in printed and "robust accuracy by FAB" in printed
        found = found["fab"]
    assert found.shape == x.shape and float((found - x).abs().max()) <= 0.15 * (1 + 1e-6)


def test_the_snippets_of_robustbench(images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    x_test, y_test = load_cifar10(n_examples=10)
    assert torch.equal(x_test, x[:10]) and torch.equal(y_test, y[:10])
    model = load_model(model_name="Carmon2019Unlabeled", dataset="cifar10", threat_model="Linf")
    right = float((Colour()(x[:10]).argmax(1) == y[:10]).float().mean())
    assert clean_accuracy(model, x_test, y_test, batch_size=3) == pytest.approx(right)

    from brinell.compat.autoattack import AutoAttack

    adversary = AutoAttack(
        model, norm="Linf", eps=8 / 255, version="custom", attacks_to_run=["apgd-ce", "apgd-dlr"], verbose=False
    )
    adversary.apgd.n_restarts = 1
    adversary.apgd.n_iter = 3
    x_adv = adversary.run_standard_evaluation(x_test, y_test)
    assert x_adv.shape == x_test.shape

    corruptions = ["fog"]
    x_test, y_test = load_cifar10c(n_examples=20, corruptions=corruptions, severity=5)
    assert torch.equal(x_test, (255 * x[:20]).div(2).floor() / 255) and torch.equal(y_test, y[:20])
    for name in ("Standard", "Engstrom2019Robustness"):
        accuracy = clean_accuracy(load_model(name, dataset="cifar10", threat_model="Linf"), x_test, y_test)
        assert 0 <= accuracy <= 1


def test_loaders_and_lists(images: tuple[Tensor, Tensor]) -> None:
    x, _ = images
    for name in ("cifar10", BenchmarkDataset.cifar_10):
        assert torch.equal(load_clean_dataset(name, 5, "data")[0], x[:5])
    shuffled, labels = load_cifar10c(20, 5, "data", True, ["fog"])
    plain = load_cifar10c(20, 5, "data", False, ["fog"])
    assert not torch.equal(shuffled, plain[0]) and sorted(labels.tolist()) == sorted(plain[1].tolist())
    with pytest.raises(brinell.InputError, match="no transform"):
        load_cifar10(5, "data", transforms_test=lambda image: image)
    assert model_dicts.keys() == robustbench.model_dicts.keys()
    listed = robustbench.model_dicts[BenchmarkDataset.cifar_10]
    assert "Carmon2019Unlabeled" in listed[ThreatModel.Linf] and "Standard" in listed[ThreatModel.L2]
    assert set(listed) == {ThreatModel.Linf, ThreatModel.L2, ThreatModel.corruptions}
    assert listed[ThreatModel.Linf]["Wong2020Fast"]["card"].architecture.startswith("PreAct")
    assert [t.value for t in ThreatModel] == ["Linf", "L2", "corruptions", "corruptions_3d"]


def test_benchmark_warns_of_train_mode_and_runs_offline(images: tuple[Tensor, Tensor], monkeypatch: Any) -> None:
    """What RobustBench tests without a network: a dummy model in train mode, one sample."""
    from brinell.leaderboard import definitions
    from brinell.leaderboard.definitions import Leaderboard

    monkeypatch.setattr(
        definitions, "LEADERBOARDS", (Leaderboard("cifar10", "Linf", brinell.Linf("8/255"), 10_000, "fgsm"),)
    )
    dummy = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(3 * 32 * 32, 10)).train()
    with pytest.warns(UserWarning, match="train mode"):
        clean, robust = robustbench.benchmark(
            dummy, n_examples=1, dataset=BenchmarkDataset.cifar_10, threat_model=ThreatModel.Linf, eps=8 / 255,
            data_dir="data", batch_size=100,
        )  # fmt: skip
    assert {clean, robust} <= {0.0, 1.0}


def test_the_modules_of_autoattack() -> None:
    from brinell.compat import autoattack as package
    from brinell.compat.autoattack.autoattack import AutoAttack
    from brinell.compat.autoattack.autopgd_base import APGDAttack, APGDAttack_targeted
    from brinell.compat.autoattack.fab_pt import FABAttack_PT
    from brinell.compat.autoattack.square import SquareAttack

    singles = APGDAttack, APGDAttack_targeted, FABAttack_PT, SquareAttack
    assert AutoAttack is package.AutoAttack and all(getattr(package, a.__name__) is a for a in singles)
    with pytest.raises(ImportError, match="from_tensorflow"):
        from brinell.compat.autoattack.utils_tf import ModelAdapter  # noqa: F401
    with pytest.raises(AttributeError, match="Did you mean 'APGDAttack'"):
        _ = package.APGDAtack
    adversary = AutoAttack(nn.Flatten().eval(), eps=0.1)
    adversary.epsilon = 0.2
    assert (adversary.eps, adversary.epsilon) == (0.2, 0.2)
