"""The callback of training loops: it measures what `evaluate` measures, and leaves the training as it was."""

import copy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.integrations import RobustAccuracy, lightning_callback
from brinell.models.demo import demo_net
from brinell.results import Run

DATA = brinell.data.load("demo", 24)
THREAT = brinell.Linf(0.1)


def training_net() -> nn.Module:
    """A network in training, with one module that stays in evaluation mode."""
    net = nn.Sequential(nn.Dropout(0.5), demo_net()).train().requires_grad_(True)
    net[1].eval()
    return net


def test_every_few_epochs_on_the_same_samples(tmp_path: Path) -> None:
    logged: list[tuple[str, int]] = []

    def log(run: Run, epoch: int) -> None:
        logged.append((str(run.path), epoch))

    monitor = RobustAccuracy(DATA, THREAT, every=2, n=16, plan="fgsm", out=tmp_path, log=log)
    found = [monitor(demo_net(), epoch) for epoch in range(4)]
    assert [f is None for f in found] == [True, False, True, False]
    assert logged == [(str(tmp_path / f"epoch-{e}"), e) for e in (1, 3)]
    run = brinell.evaluate(demo_net(), DATA[:16], THREAT, "fgsm", progress=False, test=False)
    for measured in monitor.history:
        assert str(measured.robust_accuracy) == str(run.robust_accuracy) and measured.robust_accuracy.n == 16
        assert measured.run.survivors().tolist() == run.survivors().tolist()
    assert Run.open(tmp_path / "epoch-3").finished


def test_the_training_goes_on_as_if_nothing_had_been_measured() -> None:
    net = training_net()
    net(DATA.x[:4]).sum().backward()
    before = copy.deepcopy(net.state_dict())
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    modes, state = [m.training for m in net.modules()], torch.random.get_rng_state()
    RobustAccuracy(DATA, THREAT, n=8, plan="fgsm").measure(net, 0)
    assert [m.training for m in net.modules()] == modes and any(modes) and not all(modes)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert any(g is not None for g in gradients)
    for p, g in zip(net.parameters(), gradients, strict=True):
        assert (p.grad is None) == (g is None) and (g is None or torch.equal(p.grad, g))
        assert p.requires_grad


def test_modes_return_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            raise RuntimeError("no answer")

    net = Broken().train()
    with pytest.raises(brinell.BrinellError):
        RobustAccuracy(DATA, THREAT, n=8, plan="fgsm").measure(net, 0)
    assert net.training


def test_fast_runs_without_its_audit() -> None:
    monitor = RobustAccuracy(DATA, THREAT, n=8)
    run = monitor.measure(demo_net(), 0).run
    assert run.identity.plan.name.startswith("fast") and run.attacks == ["pursuit"]
    for every in (0, 1.5, True):
        with pytest.raises(brinell.InputError, match="every"):
            RobustAccuracy(DATA, THREAT, every=every)


class Module(nn.Module):
    """A LightningModule as far as the callback sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.logged = demo_net(), list[dict[str, float]]()

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def log_dict(self, values: dict[str, float]) -> None:
        self.logged.append(values)


def test_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, package = ModuleType("lightning.pytorch"), ModuleType("lightning")
    fake.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", fake)
    monitor = RobustAccuracy(DATA, THREAT, every=2, n=8, plan="fgsm")
    callback, module = lightning_callback(monitor), Module().train()
    assert isinstance(callback, fake.Callback)
    for epoch in range(2):
        callback.on_train_epoch_end(SimpleNamespace(current_epoch=epoch), module)
    (values,) = module.logged
    assert values["robust_accuracy"] == monitor.history[0].robust_accuracy.value
    assert values["robust_accuracy_low"] <= values["robust_accuracy"] <= values["robust_accuracy_high"]


def test_lightning_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(brinell.MissingExtra, match=r"brinell\[lightning\]"):
        lightning_callback(RobustAccuracy(DATA, THREAT))
