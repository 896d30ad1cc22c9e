"""The certified curve: with an exact certifier it meets the attacked curve, and no curve of CROWN crosses it."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Curve, Problem, RunError
from brinell.core.certificate import Certificate
from brinell.curves.measure import _own
from brinell.evaluation.certificates.radii import HALVINGS


def half_space() -> nn.Module:
    """Return a model of two classes with the boundary 3 x + 4 y = 3.5: the L2 distance is |3 x + 4 y - 3.5| / 5."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0.0, 0], [3, 4]]))
        net[1].bias.copy_(torch.tensor([0, -3.5]))
    return net


@dataclass
class HalfSpace:
    """Certifies the model above exactly, in the plane without the box."""

    def certify(self, x: Tensor, y: Tensor, threat: brinell.Threat) -> list[Certificate]:
        distance = (x.double().flatten(1) @ torch.tensor([3.0, 4], dtype=torch.float64) - 3.5).abs() / 5
        eps = threat.ball(torch.arange(len(x)), x.device).eps.double()
        rows = zip(distance.tolist(), eps.tolist(), strict=True)
        return [Certificate("exact", d > e, e, d - e, 1, 0.0, "float64", "" if d > e else "too far") for d, e in rows]


@pytest.fixture(scope="module")
def world() -> tuple[nn.Module, Problem, np.ndarray]:
    x = 0.3 + 0.4 * torch.rand(20, 1, 1, 2, generator=torch.Generator().manual_seed(0))  # the box is far away
    net = half_space()
    y = net(x).argmax(1)
    y[0] = 1 - y[0]  # misclassified
    return net, Problem(x, y), ((x.flatten(1) @ torch.tensor([3.0, 4]) - 3.5).abs() / 5).numpy()


def test_both_ends_meet_at_the_true_distance(world, tmp_path: Path) -> None:
    net, data, distance = world
    found = brinell.curve(net, data, "L2", "minimal-quick", out=tmp_path / "c", certify=HalfSpace(), progress=False)
    assert found.certified is not None and found.certified[0] == 0 == found.distances[0]
    assert np.all(found.certified[1:] <= distance[1:] * (1 + 1e-6))
    assert np.all(found.certified[1:] >= (1 - 2.0**-HALVINGS) * distance[1:] * (1 - 1e-3))
    for eps in (0.0, 0.02, 0.05, 0.1):
        assert found.at(eps).k <= found.at_most(eps).k
    run = brinell.Run.open(tmp_path / "c")
    assert run.verdict.level != "invalid" and run.bracket is None and run.certificates().num_rows == 19
    again = brinell.curve(
        net, data, "L2", "minimal-quick", out=tmp_path / "c", certify=HalfSpace(), resume=True, progress=False
    )
    assert (
        np.array_equal(again.certified, found.certified)
        and brinell.Run.open(tmp_path / "c").certificates().num_rows == 19
    )


def test_the_certified_radii_are_stored_and_drawn(world, tmp_path: Path) -> None:
    net, data, _ = world
    found = brinell.curve(net, data, "L2", "minimal-quick", out=tmp_path / "c", certify=True, progress=False)
    assert found.certified is not None and found.certified.max() > 0 and "median certified radius" in str(found)
    assert np.all((found.certified < found.distances) | (found.distances == 0))
    assert brinell.verify(tmp_path / "c", net, data, rerun=2).ok
    found.save(tmp_path / "c.csv")
    rows = list(csv.reader((tmp_path / "c.csv").read_text().splitlines()))
    assert rows[0] == ["sample_id", "distance", "certified"] and float(rows[3][2]) == found.certified[2]
    copy = Curve.from_json(found.to_json())
    assert np.array_equal(copy.certified, found.certified) and np.array_equal(
        found.joined(copy).certified, copy.certified
    )
    picture = found.plot(tmp_path / "c.svg").read_text()
    assert "proved to be robust" in picture and "robust accuracy" in picture


def test_certificates_need_the_run_of_the_curve(world, tmp_path: Path) -> None:
    net, data, _ = world
    curve = Curve("L2", np.array([0, 1]), np.array([0.5, np.inf]))
    assert curve.at_most(0.1).k == 2 and curve.certified is None
    plan = brinell.attacks.FMN(steps=5)
    known = brinell.evaluate(net, data, brinell.Linf(), plan, out=tmp_path / "k", test=False, progress=False)
    with pytest.raises(RunError, match="without a radius in L2"):
        _own([known], brinell.L2())
