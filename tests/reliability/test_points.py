"""Inner and boundary points: where they must lie, exactly, in every norm, box and mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brinell.attacks.black_box.random_sampling import WHERE, RandomSampling
from brinell.core.attack import Batch, Response
from brinell.core.plan import Stage
from brinell.core.threat import threat
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.reliability import Chance
from brinell.reliability.binarization.planting import Design

EVERY_NORM = pytest.mark.parametrize("norm", NORMS)
CASES = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(sorted(NORMS)),
        "n": st.integers(2, 60),
        "share": st.sampled_from([0.01, 0.1, 0.4]),
        "edge": st.booleans(),
        "masked": st.booleans(),
        "seed": st.integers(0, 2**32),
    }
)


def world(norm, n, share, edge, masked, seed):
    """Clean points (some coordinates on the border of the box), a threat, its ball, keys."""
    key = rng.keys(seed, torch.arange(5))
    x0 = rng.uniform(rng.fold(key, 1), (n,))
    x0 = ((2 * x0 - 0.5).clamp(0, 1)) if edge else 0.25 + x0 / 2
    mask = torch.arange(n) % 3 != 1 if masked else None
    t = threat(norm, share * NORMS[norm].diameter(n), mask)
    return x0, t.ball(torch.arange(5), x0.device), rng.fold(key, 2)


def reach(ball, x0: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """How far the box lets one go in the directions of the signs of d, where the mask and d let it move."""
    lo, hi = ball.bounds(x0)
    return ball.norm.size(torch.where(d > 0, hi - x0, torch.where(d < 0, x0 - lo, 0.0)))


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_boundary_points_lie_at_distance_eps_or_where_the_box_ends(case):
    x0, ball, key = world(**case)
    for corner in {False, ball.norm.corners}:
        x = ball.surface(x0, key, corner)
        assert bool(ball.contains(x0, x).all())
        size, d = ball.distance(x0, x), x - x0
        most = reach(ball, x0, ball.norm.direction(key, tuple(x0.shape[1:]), corner)).double()
        expected = torch.minimum(ball.eps.double(), most)
        # Every coordinate is rounded towards the clean point, by at most half a unit in the last place of 1.
        assert torch.allclose(size, expected, rtol=2e-6, atol=1e-6 + 6e-8 * case["n"])
        if corner:
            lo, hi = ball.bounds(x0)
            room = torch.where(d >= 0, hi - x0, x0 - lo)
            at_corner = torch.isclose(d.abs(), torch.minimum(ball.eps[:, None], room), atol=1e-6)
            # A coordinate that stands still does so because it has no room on the side it was sent to.
            assert bool((at_corner | (d == 0)).all())


@settings(max_examples=60, deadline=None)
@given(CASES, st.sampled_from([0.01, 0.05, 0.5]))
def test_inner_points_lie_within_their_radius_and_the_first_is_clean(case, gap):
    x0, ball, key = world(**case)
    design = Design(inner=3, gap=gap, corners=False)
    for j in range(4):
        x = design.inner_points(ball, x0, key, torch.full((5,), j))
        assert bool((ball.distance(x0, x) <= (1 - gap) * ball.eps.double() * (1 + 1e-6)).all())
        assert bool(ball.contains(x0, x).all())
        # At the edge of the box a later point may be clipped back to the clean one.
        if j == 0 or not case["edge"]:
            assert bool((x == x0).all()) == (j == 0)


@EVERY_NORM
def test_points_are_all_different_and_follow_the_key(norm):
    x0, ball, key = world(norm, 30, 0.1, False, False, 3)
    design = Design(corners=ball.norm.corners)
    for draw in (design.inner_points, design.boundary_points):
        a = draw(ball, x0, key, torch.tensor([1, 2, 3, 4, 5]))
        assert torch.equal(a, draw(ball, x0, key, torch.tensor([1, 2, 3, 4, 5])))
        assert not torch.equal(a[:1], draw(ball, x0, key, torch.tensor([2, 2, 3, 4, 5]))[:1])
        assert torch.equal(a[1:], draw(ball, x0, key, torch.tensor([2, 2, 3, 4, 5]))[1:])


def test_inner_points_fill_the_ball_and_not_its_sphere():
    """In two dimensions a quarter of the disc's area lies within half of its radius."""
    x0 = torch.full((4000, 2), 0.5)
    ball = threat("L2", 0.2).ball(torch.arange(4000), x0.device)
    design = Design(corners=False, gap=0.05)
    x = design.inner_points(ball, x0, rng.keys(0, torch.arange(4000)), torch.ones(4000, dtype=torch.long))
    share = (ball.distance(x0, x) <= 0.5 * 0.95 * 0.2).double().mean().item()
    assert share == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("where", WHERE)
def test_the_random_attack_draws_where_it_says(where):
    x0, ball, key = world("Linf", 40, 0.1, False, False, 5)
    p = Batch(x0, torch.zeros(5, dtype=torch.long), key, torch.full((5,), -1))
    attack = RandomSampling(3, where)
    s = attack.init(p, ball)
    first = s.x
    s = attack.step(s, Response(torch.zeros(5, 2), torch.zeros(5)), p, ball)
    assert not torch.equal(first, s.x) and s.t.tolist() == [1] * 5
    full = torch.isclose((s.x - x0).abs(), ball.eps[:, None], atol=1e-6).sum(1)
    assert bool(ball.contains(x0, s.x).all())
    assert bool({"inside": full == 0, "surface": full == 1, "corners": full == 40}[where].all())


def test_the_random_attack_is_stored_under_its_first_name():
    assert Chance is RandomSampling
    assert Stage(RandomSampling(3)).to_json()["attack"]["type"] == "Chance"
