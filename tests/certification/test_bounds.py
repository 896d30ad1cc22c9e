"""Certificates against truth: closed forms, dense sampling, and networks of every supported operation."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brinell
from brinell.certification import Bounds, trace
from brinell.certification.interval import Region, interval_ranges
from brinell.certification.large.deviations import deviation_ranges
from brinell.certification.linear_bounds import all_lines, backward, crown_ranges, neuron_bounds
from brinell.certification.windows import supports
from brinell.core.threat import threat
from brinell.errors import ModelError
from brinell.ops import rng
from brinell.ops.defaults import standard_defaults

NORM_RADII = {"Linf": 0.03, "L2": 0.3, "L1": 1.0, "L0": 1.0}
EVERY_NORM = pytest.mark.parametrize("norm", NORM_RADII)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(shape[0])), shape[1:])


def randomised(net: nn.Module, seed: int = 0) -> nn.Module:
    """The network with keyed random weights and statistics, in evaluation mode."""
    for i, (name, v) in enumerate(net.state_dict().items()):
        if v.is_floating_point():
            u = draw(seed + i, 1, *v.shape)[0] if v.ndim else torch.tensor(0.5)
            fan_in = v[0].numel() if v.ndim > 1 else 4
            v.copy_(u + 0.5 if name.endswith("var") else (2 * u - 1) * (3 / fan_in) ** 0.5)
    return net.eval()


class Everything(nn.Module):
    """A small network with a residual sum, a concatenation, constants and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.c, self.norm = nn.Conv2d(4, 3, 3, stride=2, dilation=2, padding=1), nn.BatchNorm2d(4)
        self.last = nn.Linear(6, 3)
        self.register_buffer("mean", torch.tensor([0.4, 0.6]).view(1, 2, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / 0.5
        h = F.relu(self.norm(self.a(x)))
        h = F.leaky_relu(h + self.b(h), 0.1)
        h = self.c(h)
        h = torch.cat([h.mean((2, 3)), -F.adaptive_avg_pool2d(h, 1).flatten(1)], dim=1)
        return self.last(1 - h * 2).view(x.size(0), -1)


def dense(*middle: nn.Module) -> nn.Module:
    """A network of fully connected layers of eight neurons with these activation functions between them."""
    between = [part for m in middle[:-1] for part in (m, nn.Linear(8, 8))]
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 8), *between, middle[-1], nn.Linear(8, 3))


NETWORKS = {
    "everything": Everything,
    "relu": lambda: dense(nn.ReLU(), nn.ReLU()),
    "relu6": lambda: dense(nn.ReLU6()),
    "tanh": lambda: dense(nn.Tanh(), nn.Sigmoid()),
    "gelu": lambda: dense(nn.GELU(), nn.SiLU(), nn.GELU("tanh")),
    "max": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3)
    ),
    "average": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
    "sequence": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(2, 3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(33, 3)),
}
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


@standard_defaults()
def network(name: str) -> nn.Module:
    return randomised(NETWORKS[name]())


def inside(region: Region, seed: int, n: int) -> torch.Tensor:
    """Points of the region of one sample: random directions, many of them in its corners."""
    shape = tuple(region.x0.shape[1:])
    a = rng.normal(rng.keys(seed, torch.arange(n)), shape).double()
    a = torch.where(draw(seed + 1, n, *shape) < 0.5, 0.0, a)
    wide = region.rows(torch.zeros(n, dtype=torch.long))
    share = torch.where(draw(seed + 2, n) < 0.8, 1.0, draw(seed, n)).view(-1, 1, 1, 1)
    return wide.x0 + share * (wide.minimiser(a) - wide.x0)


@EVERY_NETWORK
@EVERY_NORM
def test_every_value_lies_within_its_bounds(name: str, norm: str) -> None:
    net, x = network(name), draw(7, 2, 2, 6, 6)
    traced = trace(net, (2, 6, 6))
    torch.testing.assert_close(traced.values(x)[-1].float(), net(x))
    region = Region.of(x, threat(norm, NORM_RADII[norm]))
    for ranges in (interval_ranges(traced, region), crown_ranges(traced, region), deviation_ranges(traced, region)):
        for row in range(2):
            points = inside(region.rows(torch.tensor([row])), row, 300)
            for k, value in enumerate(traced.values(points)):
                lower, upper = ranges.lower[k][row], ranges.upper[k][row]
                assert (value >= lower).all() and (value <= upper).all(), traced.nodes[k].name
            a = rng.normal(rng.keys(3, torch.arange(4)), (3,)).double()[None].expand(2, 4, 3)
            bound = backward(traced, ranges, all_lines(traced, ranges), region, len(traced) - 1, a).value[row]
            reached = net(points.float()).double() @ a[row].T
            assert (reached >= bound).all()


@EVERY_NORM
def test_windows_give_the_bounds_of_whole_images(norm: str) -> None:
    """Of convolutions with strides, dilation, groups and padding, and of batch normalisation between them."""
    with standard_defaults():
        net = randomised(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, (2, 3), (1, 2), (1, 0), 1, 2),
                nn.Tanh(), nn.Conv2d(6, 3, 2, dilation=2), nn.Flatten(), nn.Linear(21, 3),
            )
        )  # fmt: skip
        x = draw(3, 2, 2, 16, 16)
    traced, region = trace(net, x.shape[1:]), Region.of(x, threat(norm, NORM_RADII[norm]))
    ranges, windows = interval_ranges(traced, region), 0
    for k, node in enumerate(traced.nodes[:-3]):
        n = torch.Size(node.shape).numel()
        a = torch.eye(n, dtype=torch.float64).view(1, n, *node.shape).expand(2, -1, *[-1] * len(node.shape))
        lines = all_lines(traced, ranges)
        low, high = (s * backward(traced, ranges, lines, region, k, s * a).value for s in (1, -1))
        if supports(traced, k):
            windows += 1
            given = neuron_bounds(traced, ranges, lines, region, k, torch.arange(n).expand(2, -1))
            torch.testing.assert_close(given, (low, high), rtol=1e-9, atol=1e-9)
    assert windows >= 5


@EVERY_NORM
def test_a_linear_classifier_is_certified_up_to_its_distance(norm: str) -> None:
    x = 0.3 + 0.4 * draw(1, 6, 10)
    with standard_defaults():
        net = randomised(nn.Sequential(nn.Linear(10, 2)), 5)
    w, y = net[0].weight.double(), net(x).argmax(1)
    margin = net(x).double().gather(1, y[:, None])[:, 0] - net(x).double().gather(1, 1 - y[:, None])[:, 0]
    a = w[y] - w[1 - y]
    ball = threat(norm, 1.0).norm
    # Bisection on the exact minimum over ball and box finds the distance.
    lo, hi = torch.zeros(6, dtype=torch.float64), torch.full((6,), ball.diameter(10) * 0.999, dtype=torch.float64)
    for _ in range(60):
        mid = (lo + hi) / 2
        safe = margin + ball.least(a, mid, -x.double(), 1 - x.double()) > 0
        lo, hi = torch.where(safe, mid, lo), torch.where(safe, hi, mid)
    for factor, certified in ((0.999, True), (1.001, False)):
        if ball.counts:
            continue
        distances = (lo * factor).clamp(max=ball.diameter(10) * 0.99)
        reachable = lo < ball.diameter(10) * 0.9
        given = Bounds(net, methods=("crown",)).certify(x, y, threat(norm, distances))
        assert [c.certified for c in given] == [certified or not r for r in reachable.tolist()]


def test_unsupported_parts_are_named() -> None:
    with pytest.raises(ModelError, match=r"the module 1 \(Softmax\): it has no bounds"):
        trace(nn.Sequential(nn.Flatten(), nn.Softmax(1)).eval(), (1, 2, 2))
    with pytest.raises(ModelError, match="train mode"):
        trace(nn.Sequential(nn.Linear(2, 2)), (2,))


def test_a_wrapped_classifier_is_certified_with_its_normalisation() -> None:
    net, x = network("relu"), draw(2, 3, 2, 6, 6)
    wrapped = brinell.models.wrap(net, mean=(0.2, 0.3), std=(0.5, 0.25))
    values = trace(wrapped, (2, 6, 6)).values(x)[-1]
    torch.testing.assert_close(values.float(), wrapped.forward(x).logits)
