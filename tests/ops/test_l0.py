"""L0: not a norm, but sizes, projections and ways to a hyperplane can be compared with going through all choices."""

from itertools import combinations

import pytest
import torch

import brinell
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.norms import L0, NORMS, SIZES, kept

KEY = rng.keys(0, torch.arange(20))
N = 5


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x0 = (1.4 * rng.uniform(rng.fold(KEY, 1), (N,)) - 0.2).clamp(0, 1)
    return x0, -x0, 1 - x0


@pytest.mark.parametrize("eps", [1.0, 2.7, 4.0])
def test_the_projection_is_the_nearest_point(eps):
    x0, lo, hi = problem()
    d = 1.5 * rng.normal(rng.fold(KEY, 2), (N,))
    z = L0.project(d, torch.full((20,), eps), lo, hi)
    assert ((z >= lo) & (z <= hi)).all() and (L0.size(z) <= eps).all()
    best = torch.full((20,), torch.inf)
    for chosen in combinations(range(N), int(eps)):
        v = torch.zeros_like(d)
        v[:, list(chosen)] = d.clamp(lo, hi)[:, list(chosen)]
        best = torch.minimum(best, (v - d).square().sum(1))
    assert torch.allclose((z - d).square().sum(1), best, atol=1e-6)
    x = Ball(L0, torch.full((20,), eps)).project(x0, x0 + d)
    assert Ball(L0, torch.full((20,), eps)).contains(x0, x).all() and torch.allclose(x - x0, z, atol=1e-6)


def test_the_fewest_coordinates_to_a_hyperplane():
    _, lo, hi = (v.double() for v in problem())
    w = rng.normal(rng.fold(KEY, 3), (N,)).double()
    gain = w.abs() * torch.where(w > 0, hi, -lo)
    for share in (0.1, 0.5, 0.9):
        gap = share * gain.sum(1)
        d = L0.to_hyperplane(w, gap, lo, hi)
        assert ((d >= lo - 1e-12) & (d <= hi + 1e-12)).all() and torch.allclose((w * d).sum(1), gap)
        fewest = torch.full((20,), N)
        for k in range(N, 0, -1):
            reach = torch.stack([gain[:, list(c)].sum(1) for c in combinations(range(N), k)]).amax(0)
            fewest = torch.where(reach >= gap, k, fewest)
        assert torch.equal(L0.size(d).long(), fewest)


def test_random_points_and_steps_move_few_coordinates():
    d = L0.inside(KEY, (N,), torch.full((20,), 2.0))
    assert (L0.size(d) == 2).all() and not torch.equal(d, L0.inside(rng.fold(KEY, 1), (N,), torch.full((20,), 2.0)))
    g = rng.normal(KEY, (N,))
    step = L0.steepest(g)
    assert (L0.size(step) == 1).all() and torch.equal((step * g).sum(1), g.abs().amax(1))
    assert torch.equal(L0.size(torch.tensor([[0.0, 1e-30, -1.0]])), torch.tensor([2.0]))
    assert not kept(torch.zeros(1, 3), torch.tensor([2.0])).any()


@pytest.mark.parametrize("norm", SIZES.values(), ids=SIZES.keys())
def test_shrinking_minimises_its_objective(norm):
    """No nearby point has a smaller ‖z − d‖² / 2 + amount · ‖z‖."""
    d, amount = rng.normal(KEY, (N,)), torch.full((20,), 0.3)

    def objective(z):
        return (z.double() - d).square().sum(1) / 2 + amount * norm.size(z.double())

    best = norm.shrink(d, amount)
    for i in range(30):
        other = rng.normal(rng.fold(KEY, 100 + i), (N,)) * 0.1
        rivals = [
            best + other,
            best * 0.9,
            d,
            0 * d,
            torch.where(other > 0, best, 0.0),
            torch.where(other > 0, d, best),
        ]
        for rival in rivals:
            assert (objective(best) <= objective(rival) + 1e-6).all()


def test_the_box_limits_a_radius_that_is_none():
    x0 = torch.tensor([[0.0, 0.25], [0.5, 1.0]])
    for name, wide in (("Linf", [1.0, 1.0]), ("L1", [1.75, 1.5]), ("L0", [2.0, 2.0])):
        ball = Ball(SIZES[name], torch.tensor([torch.inf, 0.5]))
        assert ball.span(x0).tolist() == wide
        assert ball.within_box(x0).eps.tolist() == [wide[0], 0.5]


def test_l0_is_for_attacks_that_say_so():
    assert "L0" not in NORMS and str(brinell.L0(5)) == "L0(eps=5)"
    with pytest.raises(brinell.ThreatError, match="below 784"):
        brinell.evaluate("demo", brinell.data.load("demo", 2), brinell.L0(784), "minimal", progress=False)
