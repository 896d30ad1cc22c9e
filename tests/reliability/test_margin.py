"""The widest margin against closed forms, against a general solver, and where there is none."""

import numpy as np
import pytest
import torch
from scipy import optimize

from brinell.ops import rng
from brinell.reliability.binarization.margin import CHUNK, QUALITY, hard_margin


def noise(seed: int, *shape: int) -> torch.Tensor:
    return rng.normal(rng.keys(seed, torch.arange(shape[0])), shape[1:]).double()


def test_two_points_are_as_far_apart_as_they_are():
    inner, boundary = noise(0, 5, 1, 7), noise(1, 5, 1, 7)
    s = hard_margin(inner, boundary)
    d = (boundary - inner)[:, 0]
    assert torch.allclose(s.high - s.low, d.norm(dim=1), rtol=1e-6)
    assert torch.allclose(s.weight, d / d.norm(dim=1, keepdim=True), atol=1e-6)
    assert bool(s.found.all()) and bool((s.quality > 1 - 1e-6).all())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_origin_against_a_simplex(scale, shift):
    """The nearest point of the simplex conv(e_1 … e_f) to the origin is its middle, at distance 1/√f."""
    f = 9
    inner = (scale * (torch.eye(f, dtype=torch.float64) + shift)).expand(3, -1, -1)
    boundary = torch.full((3, 1, f), scale * shift, dtype=torch.float64)
    s = hard_margin(inner, boundary)
    best = scale / f**0.5
    assert bool((s.high - s.low >= QUALITY * best * (1 - 1e-6)).all())
    assert bool((s.high - s.low <= best * (1 + 1e-6)).all())


def widest(inner: np.ndarray, boundary: np.ndarray) -> float:
    """The distance of two convex hulls by a general solver: least ‖Σ a_i p_i − Σ b_j q_j‖ over two simplices."""
    n, m = len(inner), len(boundary)

    def apart(c):
        return np.square(c[:n] @ inner - c[n:] @ boundary).sum()

    sums = [{"type": "eq", "fun": lambda c: c[:n].sum() - 1}, {"type": "eq", "fun": lambda c: c[n:].sum() - 1}]
    start = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    done = optimize.minimize(
        apart,
        start,
        method="SLSQP",
        bounds=[(0, 1)] * (n + m),
        constraints=sums,
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return float(np.sqrt(done.fun))


@pytest.mark.parametrize(("inside", "outside", "f"), [(30, 1, 12), (25, 4, 20), (8, 2, 40)])
def test_against_a_general_solver(inside, outside, f):
    """With more features than points (the last case) the points are rotated first."""
    inner, boundary = noise(2, 6, inside, f), noise(3, 6, outside, f) + 1.5
    s = hard_margin(inner, boundary)
    for k in range(6):
        best = widest(inner[k].numpy(), boundary[k].numpy())
        assert QUALITY * best * (1 - 1e-4) <= float(s.high[k] - s.low[k]) <= best * (1 + 1e-4)
        assert float(s.quality[k]) <= float(s.high[k] - s.low[k]) / best * (1 + 1e-3)


def test_high_and_low_hold_for_the_points():
    inner, boundary = noise(4, 3, 200, 50), 3 * noise(5, 3, 2, 50)
    s = hard_margin(inner, boundary)
    for k in range(3):
        assert float((inner[k] @ s.weight[k]).max()) == pytest.approx(float(s.low[k]), abs=1e-12)
        assert float((boundary[k] @ s.weight[k]).min()) == pytest.approx(float(s.high[k]), abs=1e-12)
        assert bool(s.found[k]) == (float(s.high[k]) > float(s.low[k]))


def test_a_point_among_the_others_cannot_be_separated():
    inner = noise(6, 4, 60, 5)
    boundary = inner.mean(1, keepdim=True)
    twin = inner[:, :1]
    assert not bool(hard_margin(inner, boundary).found.any())
    assert not bool(hard_margin(inner, twin.clone()).found.any())
    apart = torch.cat([boundary[:2], boundary[2:] + 20])
    assert hard_margin(inner, apart).found.tolist() == [False, False, True, True]


def test_nearly_touching_sets_are_separated():
    """One point a hundred-thousandth of the spread outside the hull's face x_0 ≤ 0."""
    inner = noise(7, 2, 80, 6)
    inner[:, :, 0] = -inner[:, :, 0].abs() * (torch.arange(80) % 2)
    face = inner[:, ::2].mean(1, keepdim=True)
    face[:, :, 0] = 1e-5
    s = hard_margin(inner, face)
    assert bool(s.found.all()) and bool((s.high - s.low > 0.9e-5).all())


def test_a_sample_depends_on_itself_alone():
    inner, boundary = noise(8, CHUNK + 3, 40, 12), noise(9, CHUNK + 3, 2, 12) + 1
    whole = hard_margin(inner, boundary)
    order = torch.arange(CHUNK + 3).flip(0)
    other = hard_margin(inner[order], boundary[order])
    alone = [hard_margin(inner[k : k + 1], boundary[k : k + 1]) for k in range(CHUNK + 3)]
    assert torch.equal(whole.weight, other.weight[order])
    assert torch.equal(whole.weight, torch.cat([a.weight for a in alone]))
    assert torch.equal(whole.quality, torch.cat([a.quality for a in alone]))
