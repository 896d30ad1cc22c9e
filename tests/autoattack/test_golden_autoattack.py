"""The whole of AutoAttack against recorded outcomes of the reference implementation, sample by sample."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import brinell

pytestmark = [pytest.mark.golden, pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

# The first of the 500 recorded samples; the full comparison is a benchmark.
N = 100


@pytest.fixture(scope="module")
def fashion_net(shared: Path) -> nn.Module:
    layers = {"c1": nn.Conv2d(1, 16, 4, 2, 1), "c2": nn.Conv2d(16, 32, 4, 2, 1), "f1": nn.Linear(1568, 100)}
    layers["f2"] = nn.Linear(100, 10)
    with np.load(shared / "golden/fashion_net.npz") as file, torch.no_grad():
        for name, layer in layers.items():
            mine = {k.rpartition(".")[2]: torch.from_numpy(file[k]) for k in file.files if k.startswith(name)}
            layer.load_state_dict(mine)
    c1, c2, f1, f2 = layers.values()
    return nn.Sequential(c1, nn.ReLU(), c2, nn.ReLU(), nn.Flatten(), f1, nn.ReLU(), f2).eval().requires_grad_(False)


def test_l2_agrees_with_the_reference(shared: Path, fashion_net: nn.Module) -> None:
    recorded = json.loads((shared / "golden/autoattack.json").read_text())["L2_standard_seed0"]
    threat = brinell.L2(recorded["eps"])
    data = brinell.data.load("demo")[:N]
    run = brinell.evaluate(fashion_net, data, threat, "autoattack", progress=False)
    theirs = np.asarray(recorded["flags"][:N], dtype=bool)
    ours = np.isin(np.arange(N), run.survivors())
    print(f"GOLDEN autoattack L2: ours {ours.sum()}, theirs {theirs.sum()}, differ {np.flatnonzero(ours != theirs)}")
    assert (ours != theirs).mean() <= 0.01
    assert brinell.verify(run, fashion_net, data).ok
