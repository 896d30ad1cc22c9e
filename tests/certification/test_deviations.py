"""The ranges of large networks: sound wherever passes stop, and tight enough for many layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brinell
from brinell.certification import Bounds, certify, trace
from brinell.certification.interval import Ranges, Region, interval_ranges
from brinell.certification.large import deviations
from brinell.certification.linear_bounds import crown_ranges
from brinell.ops import rng
from brinell.ops.defaults import standard_defaults

SHAPE = (2, 8, 8)


class Residual(nn.Module):
    """A residual network of `depth` blocks of two convolutions, the third of them with stride 2 and a shortcut."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        strides = [2 if k == 2 else 1 for k in range(depth)]
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in strides)
        self.ones = nn.ModuleList(nn.Conv2d(6, 6, 3, s, 1) for s in strides)
        self.twos = nn.ModuleList(nn.Conv2d(6, 6, 3, 1, 1) for _ in strides)
        self.short, self.last = nn.Conv2d(6, 6, 1, 2), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for k, (norm, one, two) in enumerate(zip(self.norms, self.ones, self.twos, strict=True)):
            h = F.relu(norm(x))
            x = (self.short(h) if k == 2 else x) + two(F.relu(one(h)))
        return self.last(F.relu(x).mean((2, 3)))


def residual(depth: int) -> tuple[nn.Module, torch.Tensor]:
    """The network with random weights, and two samples."""
    with standard_defaults():
        torch.manual_seed(depth)
        net, x = Residual(depth).eval().requires_grad_(False), rng.uniform(rng.keys(depth, torch.arange(2)), SHAPE)
    return net, x


@pytest.mark.parametrize(("depth", "eps"), [(4, 1e-3), (4, 0.1), (6, 1e-5)])
@pytest.mark.parametrize("work", [0.0, 1e6, 1e12])
def test_ranges_hold_wherever_passes_stop(depth: int, eps: float, work: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviations, "WORK", work)
    monkeypatch.setattr(deviations, "TOGETHER", 24)
    net, x = residual(depth)
    traced, region = trace(net, SHAPE), Region.of(x, brinell.Linf(eps))
    ranges = deviations.deviation_ranges(traced, region)
    signs = rng.signs(rng.keys(1, torch.arange(400)), SHAPE).double()
    for row in range(2):
        # Rounded to float32, they stay inside.
        points = (x[row] + 0.99 * eps * signs).clamp(0, 1)
        # The network in float32 computes values within the same ranges.
        for network in (traced, traced.single):
            for k, value in enumerate(network.values(points)):
                assert (value >= ranges.lower[k][row]).all(), traced.nodes[k].name
                assert (value <= ranges.upper[k][row]).all(), traced.nodes[k].name


def widths(ranges: Ranges, k: int) -> float:
    return float((ranges.upper[k] - ranges.lower[k]).mean())


def test_passes_to_the_input_are_as_tight_as_crown_and_shorter_ones_are_looser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, x = residual(6)
    traced, region = trace(net, SHAPE), Region.of(x, brinell.Linf(1e-4))
    at = traced.nodes[traced.activations[-1]].inputs[0]
    whole = widths(deviations.deviation_ranges(traced, region), at)
    monkeypatch.setattr(deviations, "WORK", 0.0)
    short = widths(deviations.deviation_ranges(traced, region), at)
    crown, interval = widths(crown_ranges(traced, region), at), widths(interval_ranges(traced, region), at)
    assert whole < 1.1 * crown
    assert whole < short < interval


def test_a_deep_network_is_certified_although_intervals_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "LARGE", 0)
    net, x = residual(10)
    y, threat = net(x).argmax(1), brinell.Linf(1e-5)
    (interval, crown) = (Bounds(net, (method,)).certify(x, y, threat)[0] for method in ("interval", "crown"))
    assert (interval.certified, crown.certified) == (False, True)
    stopped = Bounds(net, ("crown",), seconds=1e-9).certify(x, y, threat)[0]
    assert stopped.stopped == "crown: time limit"


def test_reduced_precision_is_noticed() -> None:
    assert deviations.keeps_float32()
    try:
        torch.set_float32_matmul_precision("medium")
        assert not deviations.keeps_float32()
    finally:
        torch.set_float32_matmul_precision("highest")
