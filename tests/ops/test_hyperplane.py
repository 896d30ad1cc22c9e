"""Projections on hyperplane ∩ box against solvers that share no code with them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from brinell.core.threat import Linf
from brinell.ops.norms import NORMS, Norm

EVERY_NORM = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
# A coarse grid, so that ties, zeros and coordinates without room are common.
WEIGHTS, ROOMS = st.integers(-16, 16).map(lambda v: v / 8), st.integers(0, 16).map(lambda v: v / 16)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Weights, gap, and what the box leaves below and above; the gap is between 0 and what the box can reach."""
    n = draw(st.integers(1, 9))
    w, down, up = (np.array(draw(st.lists(v, min_size=n, max_size=n))) for v in (WEIGHTS, ROOMS, ROOMS))
    sign, share = draw(st.sampled_from([-1.0, 1.0])), draw(st.integers(0, 32)) / 32
    return w, sign * share * _reach(w, sign, down, up), -down, up


def _reach(w: np.ndarray, sign: float, down: np.ndarray, up: np.ndarray) -> float:
    return float((np.abs(w) * np.where(w * sign > 0, up, down)).sum())


def _solve(norm: Norm, w: np.ndarray, gap: float, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    row = [torch.tensor(v, dtype=torch.float64)[None] for v in (w, gap, lo, hi)]
    return norm.to_hyperplane(*row)[0].numpy()


def _smallest_linf(w: np.ndarray, gap: float, lo: np.ndarray, hi: np.ndarray) -> float:
    """Minimise τ over (d, τ) with |d_i| ≤ τ."""
    n = len(w)
    eye, ones = np.eye(n), -np.ones((n, 1))
    bounds = [*zip(lo, hi, strict=True), (0, None)]
    sides = np.vstack([np.hstack([eye, ones]), np.hstack([-eye, ones])])
    cost = np.append(np.zeros(n), 1.0)
    return float(linprog(cost, sides, np.zeros(2 * n), np.append(w, 0.0)[None], [gap], bounds).fun)


def _smallest_l1(w: np.ndarray, gap: float, lo: np.ndarray, hi: np.ndarray) -> float:
    """Minimise Σ p + m over d = p − m."""
    bounds = [(0, v) for v in np.append(hi, -lo)]
    return float(linprog(np.ones(2 * len(w)), None, None, np.append(w, -w)[None], [gap], bounds).fun)


def _smallest_l2(w: np.ndarray, gap: float, lo: np.ndarray, hi: np.ndarray) -> float:
    """The multiplier of w·d = gap by bisection: d = clip(λ w, lo, hi)."""
    a, b = -1e3, 1e3
    for _ in range(200):
        middle = (a + b) / 2
        a, b = (middle, b) if w @ np.clip(middle * w, lo, hi) < gap else (a, middle)
    return float(np.linalg.norm(np.clip((a + b) / 2 * w, lo, hi)))


SOLVERS = {"Linf": _smallest_linf, "L2": _smallest_l2, "L1": _smallest_l1}


@EVERY_NORM
@given(problem=problems())
@settings(max_examples=150, deadline=None)
def test_smallest_step_to_the_plane(norm, problem):
    w, gap, lo, hi = problem
    d = _solve(norm, w, gap, lo, hi)
    assert (d >= lo).all() and (d <= hi).all()
    assert w @ d == pytest.approx(gap, abs=1e-9)
    size = norm.size(torch.tensor(d)[None]).item()
    assert size == pytest.approx(SOLVERS[norm.name](w, gap, lo, hi), abs=1e-7)


@EVERY_NORM
@given(problem=problems(), beyond=st.floats(0.01, 10))
@settings(max_examples=50, deadline=None)
def test_out_of_reach_gives_the_corner(norm, problem, beyond):
    w, gap, lo, hi = problem
    sign = 1.0 if gap >= 0 else -1.0
    d = _solve(norm, w, sign * (_reach(w, sign, -lo, hi) + beyond), lo, hi)
    assert (d == np.where(w == 0, 0.0, np.where(w * sign > 0, hi, lo))).all()


@EVERY_NORM
@pytest.mark.parametrize(("w", "gap"), [(0.0, 1.0), (0.0, 0.0), (1.0, 0.0)])
def test_nowhere_to_go(norm, w, gap):
    d = _solve(norm, np.full(3, w), gap, np.full(3, -0.5), np.full(3, 0.5))
    assert (d == 0).all()


@EVERY_NORM
def test_negligible_weights_stay_except_in_linf(norm):
    d = _solve(norm, np.array([1.0, 9e-9]), 2.0, np.full(2, -0.5), np.full(2, 0.5))
    assert d.tolist() == [0.5, {"Linf": 0.5, "L2": 0.0, "L1": 0.0}[norm.name]]


@EVERY_NORM
def test_masked_coordinates_stay(norm):
    x = torch.full((2, 1, 2, 2), 0.5)
    mask = torch.tensor([[[True, False], [True, False]]])
    lo, hi = Linf(0.1, mask).ball(torch.arange(2), torch.device("cpu")).bounds(x)
    w = torch.tensor([1.0, 50.0, -2.0, 3.0]).view(1, 1, 2, 2).expand(2, -1, -1, -1)
    d = norm.to_hyperplane(w, torch.tensor([0.75, 9.0]), lo - x, hi - x)
    assert (d[:, ~mask] == 0).all()
    assert (w * d).flatten(1).sum(1).tolist() == pytest.approx([0.75, 1.5])


@EVERY_NORM
def test_rows_do_not_meet(norm):
    g = torch.Generator().manual_seed(3)
    w, gap = torch.randn(7, 50, generator=g), torch.randn(7, generator=g)
    lo, hi = -torch.rand(7, 50, generator=g), torch.rand(7, 50, generator=g)
    together = norm.to_hyperplane(w, gap, lo, hi)
    pairs = [norm.to_hyperplane(w[i : i + 2], gap[i : i + 2], lo[i : i + 2], hi[i : i + 2])[0] for i in range(6)]
    assert together.dtype == torch.float32
    assert torch.equal(together[:6], torch.stack(pairs))
