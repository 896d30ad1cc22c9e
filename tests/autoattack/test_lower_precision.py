"""Every attack in bfloat16 breaks what it breaks in float32, up to one sample in a hundred, where ties matter."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, FAB, FGSM, PGD, Square
from brinell.core.plan import Restarts, Stage, Targets

THREATS = {"Linf": brinell.Linf(0.1), "L2": brinell.L2(1.5), "L1": brinell.L1(12)}
STAGES = {
    "fgsm": Stage(FGSM()),
    "pgd": Stage(PGD(loss="margin")),
    "apgd-dlr": Stage(APGD(steps=30, loss="dlr")),
    "mm": Targets(APGD(steps=20, loss="minimum-margin"), 3),
    "fab": Stage(FAB(steps=20)),
    "fab-t": Targets(FAB(steps=15, targeted=True), 3),
    "square": Restarts(Square(steps=100), 1),
}


@pytest.fixture(scope="module")
def golden_net(shared: Path) -> nn.Module:
    """The network of the golden numbers, on whose logits bfloat16 ties often."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    with np.load(shared / "golden/fashion_net.npz") as file, torch.no_grad():
        for name, layer in zip(("c1", "c2", "f1", "f2"), (net[0], net[2], net[5], net[7]), strict=True):
            layer.weight.copy_(torch.from_numpy(file[f"{name}.weight"]))
            layer.bias.copy_(torch.from_numpy(file[f"{name}.bias"]))
    return net.eval()


def robust(net: object, threat: brinell.Threat, stage: Stage, precision: str) -> int:
    """Return how many of 100 samples stand."""
    data = brinell.data.load("demo")[:100]
    run = brinell.evaluate(net, data, threat, brinell.plan([stage]), precision=precision, progress=False)
    return run.robust_accuracy.k


@pytest.mark.parametrize("norm", THREATS)
@pytest.mark.parametrize("name", STAGES)
def test_bfloat16_breaks_what_float32_breaks(golden_net: nn.Module, name: str, norm: str) -> None:
    exact, lower = (robust(golden_net, THREATS[norm], STAGES[name], p) for p in ("float32", "bfloat16"))
    assert abs(exact - lower) <= 1


@pytest.mark.parametrize("name", ["fab", "fab-t"])
def test_fab_on_the_demonstration_network(name: str) -> None:
    exact, lower = (robust("demo", brinell.L2(1.0), STAGES[name], p) for p in ("float32", "bfloat16"))
    assert abs(exact - lower) <= 1
