"""Branch and bound against exact answers, from enumerating every activation pattern of small networks."""

import functools
import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from brinell.attacks import APGD, FMN
from brinell.certification import Bounds, trace
from brinell.certification.branch_and_bound import CEILING, _narrowed, _split
from brinell.certification.interval import Region
from brinell.certification.linear_bounds import crown_ranges, differences
from brinell.certification.relaxation.bounds import System, bound, columns, relaxed
from brinell.certification.relaxation.slopes import RangeTable, optimise, roots
from brinell.certification.undecided import Undecided, reduce
from brinell.core.threat import Linf, threat
from brinell.ops import rng
from brinell.ops.defaults import standard_defaults


@standard_defaults()
def world(seed: int, widths: tuple[int, ...]) -> nn.Sequential:
    """A random fully connected ReLU network of three classes on inputs of the first width."""
    sizes = [*widths, 3]
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(a, b)
        key = rng.fold(rng.keys(seed, torch.arange(b)), i)
        layer.weight.data = rng.normal(key, (a,)) / a**0.5
        layer.bias.data = 0.3 * rng.normal(rng.fold(key, 9), (1,))[:, 0]
        layers += [layer, nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).eval().requires_grad_(False)
    # All classes are equally likely at the centre of the box.
    net[-1].bias -= net(torch.full((1, widths[0]), 0.5))[0]
    return net


@functools.cache
def known(seed: int, widths: tuple[int, ...], row: int) -> float:
    x = rng.uniform(rng.keys(seed, torch.arange(2)), (widths[0],))
    net = world(seed, widths)
    return distance(net, x[row].double().numpy(), int(net(x).argmax(1)[row]))


def distance(net: nn.Sequential, x0: np.ndarray, y: int) -> float:
    """The exact Linf distance within the box to another class: one linear program per activation pattern and class."""
    linear = [(m.weight.double().numpy(), m.bias.double().numpy()) for m in net if isinstance(m, nn.Linear)]
    hidden = [len(b) for _, b in linear[:-1]]
    best, n = np.inf, len(x0)
    ball = [[[*(s * np.eye(n)[i]), -1.0], s * x0[i]] for i in range(n) for s in (1.0, -1.0)]
    for pattern in itertools.product((0.0, 1.0), repeat=sum(hidden)):
        A, c, rows, ends, at = np.eye(n), np.zeros(n), [], [], 0
        for w, b in linear[:-1]:
            A, c = w @ A, w @ c + b
            on = np.array(pattern[at : at + len(b)])
            rows += list(-(2 * on - 1)[:, None] * A)
            ends += list((2 * on - 1) * c)
            A, c, at = on[:, None] * A, on * c, at + len(b)
        A, c = linear[-1][0] @ A, linear[-1][0] @ c + linear[-1][1]
        for j in set(range(3)) - {y}:
            A_ub = [[*r, 0.0] for r in (*rows, A[y] - A[j])] + [row for row, _ in ball]
            b_ub = [*ends, c[j] - c[y], *(end for _, end in ball)]
            found = linprog([0.0] * n + [1.0], A_ub, b_ub, bounds=[(0, 1)] * n + [(0, None)])
            best = min(best, found.fun if found.status == 0 else np.inf)
    return float(best)


METHODS = ("crown", "branch-and-bound"), ("crown", "milp")


@pytest.mark.parametrize("methods", METHODS, ids=["split", "milp"])
@pytest.mark.parametrize("widths", [(2,), (2, 5), (3, 3, 3)], ids=["linear", "one layer", "two layers"])
def test_the_exact_methods_are_exact(widths: tuple[int, ...], methods: tuple[str, ...]) -> None:
    decided = 0
    for seed in range(2):
        net, x = world(seed, widths), rng.uniform(rng.keys(seed, torch.arange(2)), (widths[0],))
        y = net(x).argmax(1)
        for row in range(2):
            exact = known(seed, widths, row)
            if not 0.01 < exact < 0.9:
                continue
            decided += 1
            eps = torch.tensor([0.99 * exact, 1.01 * exact])
            twice = x[row : row + 1].expand(2, -1)
            near, far = Bounds(net, methods, seconds=60).certify(twice, y[row : row + 1].expand(2), threat("Linf", eps))
            assert near.certified and near.margin > 0 and not near.stopped
            assert not far.certified and far.counterexample is not None
            assert net(far.counterexample[None]).argmax() != y[row]
    assert decided >= 2


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_no_attack_breaks_what_is_certified(norm: str) -> None:
    """Random networks at radii where some samples are certified and some are broken."""
    both = 0
    for seed in range(1):
        net, x = world(seed, (6, 6, 6)), rng.uniform(rng.keys(seed, torch.arange(8)), (6,))
        y = net(x).argmax(1)
        nearest = FMN(steps=60)(net, x, y, threat(norm, "inf"))
        fooled, d = net(nearest).argmax(1) != y, threat(norm, 1.0).norm.size(nearest - x)
        reach = float(d[fooled].median())
        t = threat(norm, reach)
        certified = torch.tensor([c.certified for c in Bounds(net, seconds=0.2).certify(x, y, t)])
        broken = fooled & (d <= reach) | (net(APGD(steps=30)(net, x, y, t)).argmax(1) != y)
        assert not (certified & broken).any()
        both += bool(certified.any() and broken.any())
    assert both >= 1


def test_what_stays_open_says_which_method_stopped_where() -> None:
    net, x = world(1, (6, 16, 16)), torch.full((1, 6), 0.5)
    y = net(x).argmax(1)
    for methods, word in (
        (("interval",), "interval: the bound"),
        (("crown", "branch-and-bound"), "branch-and-bound: "),
    ):
        given = Bounds(net, methods=methods).certify(x, y, Linf(0.5))[0]
        assert given.stopped.startswith(word) and not given.certified
    ticks = itertools.count()
    given = Bounds(net, ("crown", "branch-and-bound"), 1.0, lambda: float(next(ticks))).certify(x, y, Linf(0.13))[0]
    assert given.certified or "time limit" in given.stopped or "counterexample" in given.stopped


@pytest.mark.parametrize("methods", [("crown",), ("interval", "crown", "optimised", "milp")])
def test_crown_stops_at_its_time_limit_and_says_so(methods: tuple[str, ...]) -> None:
    """The clock passes the limit during the second piece of work; no later method tries in vain."""
    net, x = world(1, (6, 16, 16)), torch.full((3, 6), 0.5)
    ticks, said = itertools.count(), list[str]()
    given = Bounds(net, methods, 1.0, lambda: float(next(ticks)), said.append).certify(x, net(x).argmax(1), Linf(0.5))
    assert {c.stopped for c in given} == {"crown: time limit"} and not any(c.certified for c in given)
    assert said[methods.index("crown")] == "crown, 3 samples together"


@pytest.mark.parametrize("method", ["optimised", "branch-and-bound", "milp"])
def test_a_method_alone_certifies_what_its_first_bounds_prove(method: str) -> None:
    net, x = world(0, (2, 4)), torch.full((1, 2), 0.9)
    found = Bounds(net, (method,)).certify(x, net(x).argmax(1), Linf(1e-4))
    assert found[0].certified and not found[0].stopped


NORMS = pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.4), ("L2", 0.6), ("L1", 0.9)])


def reduced(norm: str, eps: float, n: int = 4000) -> tuple[Undecided, torch.Tensor, torch.Tensor]:
    """A network reduced to its undecided neurons, with their inputs and the margins at n points of the region."""
    net, x = world(3, (3, 8, 8)), torch.full((1, 3), 0.5)
    y = net(x).argmax(1)
    traced, region = trace(net, (3,)), Region.of(x, threat(norm, eps))
    targets = torch.tensor([t for t in range(3) if t != y])
    found = reduce(traced, crown_ranges(traced, region), region, differences(y, 3)[0, targets], targets)
    directions = rng.normal(rng.keys(0, torch.arange(n)), (3,)).double()
    wide = region.rows(torch.zeros(n, dtype=torch.long))
    share = rng.uniform(rng.keys(1, torch.arange(n)), ()).double()[:, None]
    points = x + share * (wide.minimiser(directions) - x)
    z, h = torch.zeros(n, found.count).double(), torch.zeros(n, found.count).double()
    for part in found.layers:
        rows = found.neurons.at(part)
        z[:, part] = points @ rows.inputs.T + h @ rows.outputs.T + rows.constant
        h[:, part] = z[:, part].relu()
    logits = traced.values(points)[-1]
    return found, z, logits[:, y] - logits[:, targets]


@NORMS
def test_no_margin_is_below_the_bound_of_its_subproblem(norm: str, eps: float) -> None:
    net, z, margin = reduced(norm, eps)
    table, domains = RangeTable.of(net), roots(net, len(net.targets))
    seen = 0
    for _ in range(4):
        domains = optimise(net, table, net.margins.at(domains.target), domains, 3, goal=torch.inf)[0]
        for target, sign, value in zip(domains.target, domains.sign, domains.value, strict=True):
            there = (z * sign >= 0).all(1)
            seen += int(there.any())
            assert (margin[there, target] >= value).all()
        domains = _split(net, table, domains)
    assert seen >= 10


@NORMS
def test_tightened_ranges_hold_where_the_margin_is_at_most_its_ceiling(norm: str, eps: float) -> None:
    net, z, margin = reduced(norm, eps)
    table, tighter = RangeTable.of(net), 0
    domains = optimise(net, table, net.margins, roots(net, len(net.targets)), 10)[0]
    ceiling = domains.value.abs() * CEILING
    domains, table, _ = _narrowed(net, table, domains, ceiling, lambda: False)
    for target, place in zip(domains.target, domains.place, strict=True):
        there = z[margin[:, target] <= ceiling[target]]
        assert len(there) and (there >= table.lower[place]).all() and (there <= table.upper[place]).all()
        tighter += int((table.upper[place] - table.lower[place] < 0.99 * (net.upper - net.lower)).sum())
    assert tighter >= 4


@NORMS
def test_the_relaxed_network_gives_the_gradient_of_the_bound(norm: str, eps: float) -> None:
    net = reduced(norm, eps)[0]
    system, rows = System(net.neurons, net.layers), columns(net.margins)
    lines = RangeTable.of(net).lines(net, roots(net, len(net.targets)))
    choice = rng.uniform(rng.keys(2, torch.arange(net.count)), (len(net.targets),)).double()
    push = 0.1 * choice.flip(0)
    found = bound(system, net.region, rows, lines, choice, push)
    z = relaxed(system, net.region, found, lines, choice)[1]
    slopes, step = found.at.clamp(min=0) * lines.free * z, 1e-7
    for neuron in range(net.count):
        moved = choice.clone()
        moved[neuron] += step
        up = (bound(system, net.region, rows, lines, moved, push).value - found.value) / step
        torch.testing.assert_close(up, slopes[neuron], rtol=1e-3, atol=1e-4)
        moved = push.clone()
        moved[neuron] += step
        up = (bound(system, net.region, rows, lines, choice, moved).value - found.value) / step
        torch.testing.assert_close(up, -z[neuron], rtol=1e-3, atol=1e-4)


def test_a_last_layer_that_optimised_slopes_decide_is_split_no_further() -> None:
    """With a = 3x − 1, the margin relu(a) − relu(a + 1/2) + 0.55 is at least 0.05; |a| + 0.1 is never off."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    weights = [
        ([[3.0], [3.0], [-3.0]], [-1.0, -0.5, 1.0]),
        ([[1.0, 0.0, 1.0], [1.0, -1.0, 0.0]], [0.1, 5.0]),
        ([[0.0, 1.0], [0.0, 0.0]], [0.0, 4.45]),
    ]
    with torch.no_grad():
        for k, (weight, bias) in zip((1, 3, 5), weights, strict=True):
            net[k].weight.copy_(torch.tensor(weight))
            net[k].bias.copy_(torch.tensor(bias))
    x, methods = torch.full((1, 1, 1, 1), 0.5), ("crown", "optimised", "branch-and-bound")
    (found,) = Bounds(net, methods).certify(x, torch.tensor([0]), Linf(0.4999))
    assert found.method == "branch-and-bound" and 0 < found.margin <= 0.051
