"""APGD through the public API against recorded runs of the reference implementation, from the same starts."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD
from brinell.core.threat import threat

pytestmark = pytest.mark.golden

# For collecting the keys only; the `shared` fixture skips where the folder is absent.
FILE = (
    Path(os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "golden/single_runs.json"
)
RUNS = [r for r in json.loads(FILE.read_text()) if r["attack"].startswith("apgd")] if FILE.exists() else []
SAME_LOSS = 1e-3
# Shares of rows: how many best losses agree to SAME_LOSS, how many robust flags agree. L1 walks on specks of rounding
# (see `SparseAPGD._corrected`), so over many steps single rows drift apart.
LOSSES_AGREE, FLAGS_AGREE = {"Linf": 0.99, "L2": 0.99, "L1": 0.96}, 0.995


# Rows are independent, so the default run may look at fewer of them where a run is long.
EVERY, SOME = 10**6, 32


def _params() -> list:
    if not RUNS:
        return [pytest.param(None, EVERY, id="absent")]
    quick = [pytest.param(r, EVERY if r["steps"] <= 20 else SOME, id=r["key"]) for r in RUNS if _quick(r)]
    long = [r for r in RUNS if r["steps"] > 20]
    return quick + [pytest.param(r, EVERY, id=f"{r['key']}-all", marks=pytest.mark.slow) for r in long]


def _quick(run: dict) -> bool:
    return run["steps"] <= 20 or "rank" in run


@pytest.fixture(scope="module")
def recorded(shared):
    with np.load(shared / "golden/single_runs.npz") as file:
        return {k: torch.from_numpy(v) for k, v in file.items()}


@pytest.fixture(scope="module")
def net(shared):
    layers = {"c1": nn.Conv2d(1, 16, 4, 2, 1), "c2": nn.Conv2d(16, 32, 4, 2, 1), "f1": nn.Linear(1568, 100)}
    layers["f2"] = nn.Linear(100, 10)
    with np.load(shared / "golden/fashion_net.npz") as file, torch.no_grad():
        for name, layer in layers.items():
            mine = {k.rpartition(".")[2]: torch.from_numpy(file[k]) for k in file.files if k.startswith(name)}
            layer.load_state_dict(mine)
    c1, c2, f1, f2 = layers.values()
    return nn.Sequential(c1, nn.ReLU(), c2, nn.ReLU(), nn.Flatten(), f1, nn.ReLU(), f2).eval().requires_grad_(False)


@pytest.mark.parametrize(("run", "n"), _params())
def test_reproduces_the_reference(shared, net, recorded, run, n):
    rows = _attack(net, recorded, run, "autoattack", n)
    loss, robust = (recorded[f"{run['key']}_{what}"][:n].numpy() for what in ("best_loss", "robust"))
    assert recorded[f"{run['key']}_robust"].sum() == run["robust_count"]
    off = np.abs(rows["best_loss"].to_numpy() - loss) / np.maximum(np.abs(loss), 1e-6)
    agree = rows["broken"].to_numpy() == ~robust
    print(
        f"{run['key']}: losses {(off <= SAME_LOSS).mean():.4f}, median {np.median(off):.1e}, flags {agree.mean():.4f}"
    )
    # Of few rows, one may differ.
    assert (~agree).sum() <= max(1, (1 - FLAGS_AGREE) * len(agree))
    assert (off > SAME_LOSS).sum() <= max(1, (1 - LOSSES_AGREE[run["norm"]]) * len(off))
    assert (rows["forwards"].to_numpy() == run["steps"] + 1).all()


def test_the_paper_s_version_is_another_algorithm(shared, net, recorded):
    """If the switch did nothing, the tests above would say nothing about it."""
    run = next(r for r in RUNS if r["key"] == "apgd_Linf_dlr_20")
    loss = recorded["apgd_Linf_dlr_20_best_loss"].numpy()
    rows = _attack(net, recorded, run, None, EVERY)
    assert (np.abs(rows["best_loss"].to_numpy() - loss) > SAME_LOSS * np.abs(loss)).mean() > 0.1


def _attack(net, recorded, run, quirks, n):
    apgd = APGD(run["steps"], run.get("loss", "dlr-targeted"), quirks=quirks)
    part = brinell.Targets(apgd, ranks=[run["rank"]]) if "rank" in run else apgd
    x, y, start = (recorded[name][:n] for name in ("x", "y", run["start"]))
    return brinell.attack(net, (x, y), threat(run["norm"], run["eps"]), part, start=start, early_exit=False)
