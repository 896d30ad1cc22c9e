"""Norms against oracles that share no code with them: SLSQP, bisection in float64, and the laws of random points."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from brinell.ops import norms, rng
from brinell.ops.norms import INSIDE, NORMS, Norm
from brinell.ops.norms.water_filling import FEW_ITERATIONS, capped_scale, water_level
from brinell.ops.rowwise import rows
from brinell.testing import check_norm

EVERY_NORM = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
ORDER = {"Linf": np.inf, "L2": 2, "L1": 1}
RADII = (1e-3, 1e-2, 8 / 255, 0.1, 0.5, 1.0, 3.0, 12.0, 100.0)
CASES = st.fixed_dictionaries(
    {
        "n": st.one_of(st.integers(1, 12), st.integers(13, 200)),
        "eps": st.sampled_from(RADII),
        "far": st.sampled_from([0.01, 0.3, 1.0, 10.0, 1000.0]),
        "seed": st.integers(0, 2**32),
        "equal": st.booleans(),
        "sparse": st.booleans(),
    }
)


def points(n, eps, far, seed, equal, sparse) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clean points (some on the box's border), points to project (some coordinates equal or zero), and a radius."""
    key = rng.keys(seed, torch.arange(4))
    x0 = (1.4 * rng.uniform(rng.fold(key, 1), (n,)) - 0.2).clamp(0, 1)
    d = rng.normal(rng.fold(key, 2), (n,)) * far * eps
    d = d.sign() * far * eps if equal else d
    d = d * (rng.uniform(rng.fold(key, 3), (n,)) < 0.3) if sparse else d
    return x0, x0 + d, torch.full((4,), eps)


def size(norm: Norm, d: torch.Tensor) -> np.ndarray:
    return np.linalg.norm(d.double().numpy(), ORDER[norm.name], axis=1)


# ----------------------------------------------------------------------------------------------------------- oracles


def bisect(shape, v: np.ndarray, eps: float, lo: np.ndarray, hi: np.ndarray, order: float) -> np.ndarray:
    """The largest parameter in [0, 1] (more means further out) whose point still lies in the ball, in float64."""
    a, b = 0.0, 1.0
    if np.linalg.norm(shape(1.0, v, lo, hi), order) <= eps:
        return shape(1.0, v, lo, hi)
    for _ in range(200):
        c = (a + b) / 2
        a, b = (c, b) if np.linalg.norm(shape(c, v, lo, hi), order) <= eps else (a, c)
    return shape(a, v, lo, hi)


# The stationary points of the Lagrangian, by the multiplier of the ball.
SHAPES = {
    "Linf": lambda s, v, lo, hi: np.clip(v, np.maximum(lo, -s * np.abs(v).max()), np.minimum(hi, s * np.abs(v).max())),
    "L2": lambda s, v, lo, hi: np.clip(s * v, lo, hi),
    "L1": lambda s, v, lo, hi: np.clip(np.sign(v) * np.maximum(np.abs(v) - (1 - s) * np.abs(v).max(), 0), lo, hi),
}


def slsqp(norm: str, v: np.ndarray, eps: float, lo: np.ndarray, hi: np.ndarray) -> float:
    """The smallest distance ‖z − v‖₂ over ball ∩ box, by a general solver over z = p − m with p, m ≥ 0."""
    n = len(v)
    bounds = [*((0, max(h, 0)) for h in hi), *((0, max(-l, 0)) for l in lo)]
    ball = {
        "L2": lambda z: eps**2 - ((z[:n] - z[n:]) ** 2).sum(),
        "L1": lambda z: eps - z.sum(),
        "Linf": lambda z: np.concatenate([eps - (z[:n] - z[n:]), eps + (z[:n] - z[n:])]),
    }[norm]
    r = optimize.minimize(
        lambda z: ((z[:n] - z[n:] - v) ** 2).sum(), np.full(2 * n, 1e-3), bounds=bounds, method="SLSQP",
        constraints=[{"type": "ineq", "fun": ball}], options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    return float(r.fun**0.5)


@EVERY_NORM
@given(case=CASES)
@settings(max_examples=60, deadline=None)
def test_projection_solves_its_optimality_conditions(norm, case):
    x0, x, eps = points(**case)
    lo, hi = -x0, 1 - x0
    z = norm.project(x - x0, eps, lo, hi)
    # Where the box takes nearly all of the radius, the free coordinates follow the radius aimed at many times over.
    aim = eps if norm.name == "Linf" else eps * INSIDE
    for i in range(len(x)):
        v = (x - x0)[i].double().numpy()
        want = bisect(
            SHAPES[norm.name], v, float(aim[i]), lo[i].double().numpy(), hi[i].double().numpy(), ORDER[norm.name]
        )
        np.testing.assert_allclose(z[i].double().numpy(), want, atol=3e-6 * float(eps[i]) + 1e-7 * np.abs(want).max())


@EVERY_NORM
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("eps", [0.05, 0.4, 1.0])
def test_projection_against_a_general_solver(norm, n, eps):
    key = rng.keys(11, torch.arange(4))
    x0 = (1.4 * rng.uniform(rng.fold(key, 1), (n,)) - 0.2).clamp(0, 1)
    d = rng.normal(rng.fold(key, 2), (n,))
    z = norm.project(d.double(), torch.full((4,), eps).double(), -x0.double(), 1 - x0.double())
    for i in range(4):
        best = slsqp(norm.name, d[i].double().numpy(), eps, -x0[i].double().numpy(), 1 - x0[i].double().numpy())
        assert float((z[i] - d[i].double()).norm()) == pytest.approx(best, abs=2e-5)


@EVERY_NORM
@given(case=CASES, way=st.sampled_from(["nearest", "retract"]))
@settings(max_examples=80, deadline=None)
def test_results_lie_in_ball_and_box(norm, case, way):
    x0, x, eps = points(**case)
    z = getattr(norm, way)(x0, x, eps, 0.0, 1.0)
    assert z.dtype == torch.float32 and z.min() >= 0 and z.max() <= 1
    assert (size(norm, z.double() - x0.double()) <= eps.double().numpy() * (1 + 1e-6)).all()


@EVERY_NORM
@pytest.mark.parametrize("way", ["nearest", "retract"])
@pytest.mark.parametrize("eps", [1e-3, 0.1, 1.0])
def test_rounding_of_thousands_of_coordinates_does_not_add_up(norm, way, eps):
    key = rng.keys(0, torch.arange(16))
    x0 = 0.5 + rng.uniform(key, (3072,)) / 2
    x = x0 + eps * rng.signs(rng.fold(key, 1), (3072,)) / 100
    z = getattr(norm, way)(x0, x, torch.full((16,), eps), 0.0, 1.0)
    assert (size(norm, z.double() - x0.double()) <= np.float64(np.float32(eps)) * (1 + 1e-6)).all()


@EVERY_NORM
@given(case=CASES, way=st.sampled_from(["nearest", "retract"]))
@settings(max_examples=40, deadline=None)
def test_idempotent(norm, case, way):
    x0, x, eps = points(**case)
    once = getattr(norm, way)(x0, x, eps, 0.0, 1.0)
    twice = getattr(norm, way)(x0, once, eps, 0.0, 1.0)
    # A point that is inside already moves by rounding at most.
    assert (twice - once).abs().max() <= 2e-6 * float(eps[0]) + 6e-8


@EVERY_NORM
@given(case=CASES)
@settings(max_examples=40, deadline=None)
def test_no_feasible_point_is_nearer(norm, case):
    x0, x, eps = points(**case)
    z = norm.nearest(x0, x, eps, 0.0, 1.0).double()
    here = (z - x.double()).norm(dim=1)
    for i in range(3):
        around = norm.inside(rng.keys(i, torch.arange(len(x))), tuple(x.shape[1:]), eps)
        # Clipping towards the box that holds x0 only shrinks: feasible. So are points between it and the projection.
        rival = (x0 + around).clamp(0, 1).double()
        for share in (1.0, 0.1, 0.001):
            there = (share * rival + (1 - share) * z - x.double()).norm(dim=1)
            assert (here <= there * (1 + 1e-6) + 2e-6 * eps).all()


@EVERY_NORM
def test_points_inside_stay(norm):
    key = rng.keys(0, torch.arange(50))
    x0 = 0.25 + rng.uniform(key, (30,)) / 2
    eps = torch.full((50,), 0.2)
    x = x0 + norm.inside(rng.fold(key, 1), (30,), eps * 0.99)
    for way in (norm.nearest, norm.retract):
        assert (way(x0, x, eps, 0.0, 1.0) - x).abs().max() <= 1.2e-7


@EVERY_NORM
@pytest.mark.parametrize("way", ["nearest", "retract"])
def test_bounds_may_be_tensors(norm, way):
    """A mask is a box without room: those coordinates equal x0 exactly, the others use the whole radius."""
    key = rng.keys(0, torch.arange(20))
    x0, free = 0.3 + 0.4 * rng.uniform(key, (1, 4, 5)), rng.uniform(rng.fold(key, 1), (1, 4, 5)) < 0.5
    lo, hi = torch.where(free, 0.0, x0), torch.where(free, 1.0, x0)
    eps = torch.full((20,), 0.25)
    z = getattr(norm, way)(x0, x0 + rng.normal(rng.fold(key, 2), (1, 4, 5)), eps, lo, hi)
    assert torch.equal(z[~free], x0[~free]) and not torch.equal(z[free], x0[free])
    assert (size(norm, (z.double() - x0.double()).flatten(1)) <= 0.25 * (1 + 1e-6)).all()
    if way == "nearest":
        assert (norm.size(z - x0) >= 0.25 * (1 - 1e-5)).all()


@EVERY_NORM
def test_one_radius_per_row(norm):
    eps = torch.tensor([1e-3, 0.02, 0.3, 2.0])
    x0 = torch.full((4, 40), 0.5)
    x = x0 + rng.normal(rng.keys(0, torch.arange(4)), (40,))
    z = norm.nearest(x0, x, eps, 0.0, 1.0)
    alone = torch.cat([norm.nearest(x0[i : i + 1], x[i : i + 1], eps[i : i + 1], 0.0, 1.0) for i in range(4)])
    assert torch.allclose(z, alone, atol=1e-7)
    assert norm.size(z - x0)[:3].tolist() == pytest.approx(eps[:3].tolist(), rel=5e-4)


@EVERY_NORM
def test_no_room_at_all(norm):
    x0 = torch.tensor([[0.0, 1.0, 0.0]])
    z = norm.nearest(x0, torch.tensor([[-5.0, 9.0, -1e-9]]), torch.tensor([0.5]), 0.0, 1.0)
    assert torch.equal(z, x0)
    assert torch.equal(norm.nearest(x0, x0, torch.tensor([0.5]), 0.0, 1.0), x0)


def test_known_projections():
    wide = torch.full((1, 3), 9.0)
    d = torch.tensor([[3.0, -1.0, 0.5]])

    def of(name: str, eps: float, hi: torch.Tensor = wide) -> list[float]:
        return NORMS[name].project(d, torch.tensor([eps]), -wide, hi)[0].tolist()

    assert of("Linf", 0.7) == pytest.approx([0.7, -0.7, 0.5])
    assert of("L2", 1.0) == pytest.approx((d / d.norm())[0].tolist(), rel=1e-5)
    assert of("L1", 1.0) == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)
    assert of("L1", 3.0) == pytest.approx([2.5, -0.5, 0.0], abs=1e-5)
    # The first coordinate stops at 1; what it leaves goes to the others.
    assert of("L1", 2.0, torch.tensor([[1.0, 9.0, 9.0]])) == pytest.approx([1.0, -0.75, 0.25], abs=1e-5)


def test_inward_rounds_towards_the_clean_point():
    key = rng.keys(0, torch.arange(100))
    x0, d = rng.uniform(key, (500,)), 1e-4 * rng.normal(rng.fold(key, 1), (500,))
    x = norms.inward(x0, d)
    assert ((x.double() - x0.double()).abs() <= d.double().abs() * (1 + 1e-6)).all()
    assert ((x.double() - x0.double() - d.double()).abs() <= 2.0**-23).all()
    assert ((x0 + d).double() - x0.double()).abs().gt(d.double().abs()).float().mean() > 0.3, "the test tests nothing"


# ------------------------------------------------------------------------------------------------------- water level


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=12), st.integers(0, 100))
@settings(deadline=None)
def test_water_level_solves_its_equation(columns, share):
    c = torch.tensor([[a / 4 for a, _ in columns]], dtype=torch.float64)
    w = torch.tensor([[b / 2 for _, b in columns]], dtype=torch.float64)
    g = (w * c).sum(1) * share / 100
    level = water_level(c, w, g)
    if float(g) > 0:
        assert float((w * torch.minimum(c, level[:, None])).sum()) == pytest.approx(float(g), rel=1e-12)
    else:
        assert float((w * torch.minimum(c, level[:, None])).sum()) == pytest.approx(0, abs=1e-12)


def test_water_level_at_its_ends():
    c, w = torch.tensor([[1.0, 2.0, 4.0]]).double(), torch.ones(1, 3).double()

    def level(g: float) -> float:
        return float(water_level(c, w, torch.tensor([g]).double()))

    assert level(7.0) == 4.0
    assert level(7.000001) == np.inf
    assert level(3.0) == 1.0
    assert level(0.0) == 0.0
    assert level(6.0) == 3.0
    zero = torch.zeros(1, 3).double()
    assert float(water_level(c, zero, torch.tensor([1.0]).double())) == np.inf
    assert float(water_level(zero, w, torch.tensor([0.5]).double())) == np.inf


def test_water_level_with_negative_weights():
    """min(τ, 5) − min(τ, 2) is flat until 2 and grows by 1 until 5."""
    c, w = torch.tensor([[2.0, 5.0]]).double(), torch.tensor([[-1.0, 1.0]]).double()
    assert float(water_level(c, w, torch.tensor([1.0]).double())) == 3.0
    assert float(water_level(c, w, torch.tensor([3.0]).double())) == 5.0
    assert float(water_level(c, w, torch.tensor([3.1]).double())) == np.inf


SOLVERS = pytest.mark.parametrize(
    "solve", [partial(capped_scale, tests=tests) for tests in (True, False)], ids=["looking", "turning"]
)


@SOLVERS
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12), st.integers(1, 100))
@settings(deadline=None)
def test_capped_scale_solves_its_equation(solve, columns, share):
    """On the CPU until all rows stand still, elsewhere by a fixed number of turns."""
    v, cap = (torch.tensor([[c[i] / 4 for c in columns]], dtype=torch.float64) for i in (0, 1))
    most = float(torch.where(v > 0, cap, 0.0).sum())
    q = solve(v, cap, torch.tensor([most * share / 100], dtype=torch.float64))
    if most > 0:
        assert float(torch.minimum(q[:, None] * v, cap).nan_to_num(0.0).sum()) == pytest.approx(
            most * share / 100, rel=1e-9
        )
    beyond = solve(v, cap, torch.tensor([most + 1.0], dtype=torch.float64))
    assert float(beyond) > 1e9


@SOLVERS
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("caps", ["free", "in proportion", "some zero"])
def test_capped_scale_is_exact_for_slopes_of_any_spread(solve, spread, caps):
    """Up to ten orders of magnitude between slopes, up to nearly everything capped: the sum is what was asked for."""
    key = rng.keys(0, torch.arange(24))
    v = (spread * rng.normal(rng.fold(key, 1), (3072,))).double().exp()
    cap = rng.uniform(rng.fold(key, 2), (3072,)).double()
    if caps == "free":
        cap = cap * v
    elif caps == "some zero":
        cap = cap * v * (rng.uniform(rng.fold(key, 3), (3072,)) < 0.7)
    share = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99, 0.999999]).double().repeat(4)
    g = share * cap.sum(1)
    q = solve(v, cap, g)
    torch.testing.assert_close(torch.minimum(q[:, None] * v, cap).sum(1), g, rtol=1e-12, atol=0)


@pytest.mark.parametrize("spread", [0.0, 3.0, 8.0])
@pytest.mark.parametrize("orders", [0.0, 3.0, 9.0])
def test_few_turns_do_for_a_hyperplane_in_linf(spread, orders):
    """Every term is capped where its own room ends, whatever its slope."""
    key = rng.keys(1, torch.arange(24))
    slope = (spread * rng.normal(rng.fold(key, 1), (3072,))).double().exp()
    room = 10 ** (-orders * rng.uniform(rng.fold(key, 2), (3072,)).double()) * rng.uniform(key, (3072,)).double()
    share = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.999, 0.999999]).double().repeat(4)
    g = share * (slope * room).sum(1)
    until_still = capped_scale(slope, slope * room, g, tests=True)
    assert torch.equal(capped_scale(slope, slope * room, g, tests=False, iterations=FEW_ITERATIONS), until_still)


@SOLVERS
def test_capped_scale_of_a_row_does_not_depend_on_its_neighbours(solve):
    """The first row needs one step of Newton's method, the last as many as it has coordinates."""
    v = torch.stack([torch.ones(30), 2.0 ** -torch.arange(30), 4.0 ** torch.arange(30)]).double()
    cap = torch.stack([torch.full((30,), 9.0), torch.ones(30), 2.0 ** torch.arange(30)]).double()
    g = torch.tensor([3.0, 29.0, 2.0**29]).double()
    together = solve(v, cap, g)
    assert torch.equal(together, torch.cat([solve(v[i : i + 1], cap[i : i + 1], g[i : i + 1]) for i in range(3)]))
    for i in range(3):
        assert float(torch.minimum(together[i] * v[i], cap[i]).sum()) == pytest.approx(float(g[i]), rel=1e-9)


# --------------------------------------------------------------------------------------------------------- steepest


@EVERY_NORM
@given(seed=st.integers(0, 10_000), n=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_steepest_has_size_one_and_gains_most(norm, seed, n):
    g = rng.normal(rng.keys(seed, torch.arange(4)), (n,))
    step = norm.steepest(g)
    assert norm.size(step).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    dual = {"Linf": 1, "L2": 2, "L1": np.inf}[norm.name]
    assert (step * g).sum(1).tolist() == pytest.approx(np.linalg.norm(g.numpy(), dual, axis=1).tolist(), rel=1e-4)
    assert norm.dual_size(g).tolist() == pytest.approx(np.linalg.norm(g.numpy(), dual, axis=1).tolist(), rel=1e-5)
    assert norm.size(g).tolist() == pytest.approx(
        np.linalg.norm(g.numpy(), ORDER[norm.name], axis=1).tolist(), rel=1e-5
    )


@EVERY_NORM
def test_a_zero_gradient_goes_nowhere(norm):
    assert (norm.steepest(torch.zeros(2, 1, 3, 3), 0.5) == 0).all()


@pytest.mark.parametrize(("density", "moved"), [(0.0, 1), (0.01, 1), (0.1, 1), (0.25, 3), (0.5, 5), (1.0, 10)])
def test_density_is_the_share_of_coordinates_that_move_in_l1(density, moved):
    g = torch.tensor([[0.1, -0.9, 0.3, 0.5, -0.2, 0.7, 0.4, -0.8, 0.6, 1.0]])
    step = NORMS["L1"].steepest(g, density)
    top = g.abs().topk(moved).indices[0]
    want = torch.zeros(10)
    want[top] = g[0, top].sign() / moved
    assert torch.allclose(step[0], want)
    assert torch.equal(step, NORMS["L1"].steepest(g, torch.tensor([density])))


def test_tied_coordinates_all_move_in_l1():
    step = NORMS["L1"].steepest(torch.tensor([[2.0, -2.0, 1.0, 0.0]]), 0.0)
    assert step[0].tolist() == pytest.approx([0.5, -0.5, 0, 0])


# ---------------------------------------------------------------------------------------------------- random points


@EVERY_NORM
@pytest.mark.parametrize("n", [1, 3, 50])
def test_uniform_in_the_ball(norm, n):
    """In a ball of dimension n the n-th power of the relative radius is uniform."""
    eps = torch.linspace(0.1, 3.0, 4000)
    d = norm.inside(rng.keys(0, torch.arange(4000)), (n,), eps)
    r = norm.size(d.double()) / eps.double()
    assert r.max() <= 1 + 1e-6
    assert stats.kstest((r**n).numpy(), "uniform").pvalue > 1e-4
    # Directions: as often to the left as to the right, and no coordinate is preferred.
    assert (d > 0).double().mean(0).sub(0.5).abs().max() < 5 * 0.5 / 4000**0.5
    share = (d.abs() / rows(eps, d)).double()
    spread = share.std(0).max() / 4000**0.5
    assert (share.mean(0) - share.mean()).abs().max() < 5 * spread + 1e-9


@EVERY_NORM
@pytest.mark.parametrize("n", [3, 784])
@pytest.mark.parametrize("way", ["inside", "start"])
def test_the_last_bit_does_not_depend_on_the_place_in_the_batch(norm, n, way):
    """Vector units finish the end of a tensor with other code, whose powers round differently."""
    key, eps = rng.keys(0, torch.arange(333)), torch.linspace(0.1, 3, 333)
    draw = getattr(norm, way)
    whole = draw(key, (n,), eps)
    for m in (13, 100):
        parts = [draw(k, (n,), e) for k, e in zip(key.split(m), eps.split(m), strict=True) if len(k) > 1]
        assert torch.equal(torch.cat(parts), whole[: len(whole) - (len(whole) % m == 1)])


def test_starts_lie_where_autoattack_puts_them():
    key, eps = rng.keys(0, torch.arange(500)), torch.linspace(0.1, 2.0, 500)
    on_face, on_sphere, gauss = (NORMS[p].start(key, (40,), eps) for p in ("Linf", "L2", "L1"))
    assert torch.allclose(on_face.abs().amax(1), eps, rtol=1e-5)
    assert (
        stats.kstest(
            (on_face / on_face.abs().amax(1, keepdim=True))[:, :1].flatten().numpy() / 2 + 0.5, "uniform"
        ).statistic
        < 0.1
    )
    assert torch.allclose(on_sphere.norm(dim=1), eps, rtol=1e-5)
    assert stats.kstest(gauss.flatten().numpy(), "norm").pvalue > 1e-4


@EVERY_NORM
def test_diameter_is_the_distance_between_opposite_corners(norm):
    for n in (1, 2, 784):
        assert norm.diameter(n) == pytest.approx(float(np.linalg.norm(np.ones(n), ORDER[norm.name])))


# ------------------------------------------------------------------------------------------------------ conformance


@EVERY_NORM
def test_conforms(norm):
    check_norm(norm)


class Loose(norms.L2Norm):
    """Scales, but forgets the box."""

    def project(self, d, eps, lo, hi):
        return d * rows((eps / self.size(d)).clamp(max=1), d)


class Short(norms.L2Norm):
    """Scales and clips, which is feasible but not nearest."""

    def project(self, d, eps, lo, hi):
        return (d * rows((0.999999 * eps / self.size(d)).clamp(max=1), d)).clamp(lo, hi)


class Wrong(norms.L1Norm):
    """Its dual is not its dual."""

    def dual_size(self, g):
        return g.abs().sum(1)


@pytest.mark.parametrize(("norm", "why"), [(Loose(), "leaves the box"), (Short(), "nearer"), (Wrong(), "dual norm")])
def test_the_conformance_check_sees(norm, why):
    with pytest.raises(AssertionError, match=why):
        check_norm(norm)
