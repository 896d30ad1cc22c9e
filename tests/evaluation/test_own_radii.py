"""Where every sample has its own radius it keeps it: in parts, merged, and verified in any order."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brinell import Linf, Problem, Run, RunError, evaluate, review, verify
from brinell.attacks import FGSM
from brinell.ops import rng
from brinell.testing.runs import reseal

N = 12
IDS = torch.arange(N) * 3 + 5


def network() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    for i, p in enumerate(net.parameters()):
        p.data.copy_(rng.normal(rng.keys(3, torch.tensor([i])), tuple(p.shape))[0])
    return net.requires_grad_(False)


NET = network()
X = rng.uniform(rng.keys(5, torch.arange(N)), (1, 4, 4))
Y = NET(X).argmax(1)


def distances() -> torch.Tensor:
    """Of a linear classifier in closed form (no pixel is near the border of the box at these radii)."""
    w, z = NET[1].weight, NET(X)
    out = []
    for i in range(N):
        others = [c for c in range(3) if c != Y[i]]
        out.append(min(float((z[i, Y[i]] - z[i, c]) / (w[Y[i]] - w[c]).abs().sum()) for c in others))
    return torch.tensor(out, dtype=torch.float64)


# Beyond the distance for every other sample: exactly these break.
FACTOR = torch.where(torch.arange(N) % 2 == 0, 1.3, 0.7).double()
EPS = (distances() * FACTOR).clamp(max=0.9)


def part(at: list[int], out: Path, eps: Any = None) -> Run:
    index = torch.tensor(at)
    threat = Linf(EPS[index]) if eps is None else Linf(eps)
    return evaluate(NET, Problem(X[index], Y[index], IDS[index]), threat, [FGSM("margin")], out=out, progress=False)


PARTS = ([7, 0, 3, 10], [1, 11, 2, 9, 4], [8, 6, 5])


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [part(at, tmp_path / f"part{k}").path for k, at in enumerate(PARTS)]


def test_a_merged_run_keeps_every_radius(parts: list[Path], tmp_path: Path) -> None:
    whole = part(list(range(N)), tmp_path / "whole")
    merged = Run.merge(parts, tmp_path / "merged")
    told = dict(zip(IDS.tolist(), EPS.tolist(), strict=True))
    assert merged.sample_radii == whole.sample_radii == told
    assert merged.survivors().tolist() == whole.survivors().tolist() and 0 < len(whole.survivors()) < N
    fallen = set(IDS.tolist()) - set(merged.survivors().tolist())
    assert fallen <= set(IDS[::2].tolist())
    assert Run.merge(parts[::-1], tmp_path / "again").manifest["identity"] == merged.manifest["identity"]
    assert len(merged.manifest["identity"]["threat"]["eps"]) == merged.manifest["identity"]["data"]["n"] == N


@pytest.mark.parametrize("order", [torch.arange(N), torch.arange(N).flip(0), torch.arange(N).roll(5)], ids=str)
def test_it_is_verified_whatever_the_order_of_the_data(order: torch.Tensor, parts: list[Path], tmp_path: Path) -> None:
    merged = Run.merge(parts, tmp_path / "merged")
    data = Problem(X[order], Y[order], IDS[order])
    found = verify(merged, NET, data)
    assert found.ok and found.checked > 0
    # A part of the samples is no fault of its rows, but a choice.
    found = verify(Run.open(parts[1]), NET, data)
    assert not found.failures and found.checked > 0 and "of the 12 samples of the data" in found.objections[0]
    assert len(found.objections) == 1
    assert review([merged.path], NET, data, rerun=0).ok


def edit(run: Path, change: Any) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    reseal(run)


def test_radii_that_were_exchanged_or_do_not_fit_are_told(parts: list[Path], tmp_path: Path) -> None:
    merged = Run.merge(parts, tmp_path / "merged")
    data = Problem(X, Y, IDS)
    whole = (merged.path / "manifest.json").read_text()
    edit(merged.path, lambda m: m["identity"]["threat"]["eps"].reverse())
    assert not verify(merged.path, NET, data).ok
    for change, said in (
        (lambda m: m["sample_ids"].pop(), "a sample id for each of 12 radii"),
        (lambda m: m["sample_ids"].__setitem__(0, m["sample_ids"][1]), "a sample id for each of 12 radii"),
        (lambda m: m["sample_ids"].__setitem__(0, "x"), "sample_ids as a list of int"),
        (lambda m: m["identity"]["threat"]["eps"].pop(), "a radius for each of 12 samples"),
        (lambda m: m["identity"]["threat"]["eps"].__setitem__(0, None), "threat.eps as a list of int or float"),
    ):
        (merged.path / "manifest.json").write_text(whole)
        edit(merged.path, change)
        with pytest.raises(RunError, match=said):
            verify(merged.path, NET, data)
    (merged.path / "manifest.json").write_text(whole)
    edit(merged.path, lambda m: m["sample_ids"].__setitem__(0, 999))
    assert "1 samples have no radius" in str(verify(merged.path, NET, data))


def test_two_radii_of_one_sample_are_refused(parts: list[Path], tmp_path: Path) -> None:
    other = part([3, 5], tmp_path / "other", EPS[[3, 5]] * torch.tensor([1.0, 0.5], dtype=torch.float64))
    with pytest.raises(RunError, match=f"1 samples with two radii, the first with id {int(IDS[5])}"):
        Run.merge([*parts, other.path], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_one_radius_for_all_is_another_threat(parts: list[Path], tmp_path: Path) -> None:
    one = part([1], tmp_path / "one", 0.1)
    with pytest.raises(RunError, match=r"threat\.eps"):
        Run.merge([*parts, one.path], tmp_path / "merged")


def test_runs_that_do_not_say_whose_radii_they_have_are_refused(parts: list[Path], tmp_path: Path) -> None:
    edit(parts[0], lambda m: m.pop("sample_ids"))
    with pytest.raises(RunError, match="which sample has which radius"):
        Run.merge(parts, tmp_path / "merged")
