"""The conformance check of norms, and `require`, which all conformance checks use."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from brinell.core.threat import TOLERANCE, Ball
from brinell.ops import rng
from brinell.ops.norms import Norm


def require(condition: Any, message: str) -> None:
    """Raise AssertionError with this message unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)


def check_norm(norm: Norm, sizes: Iterable[int] = (1, 2, 7, 40), samples: int = 16) -> None:
    """Check the axioms of a norm, its dual, its projections, its steps to hyperplanes and its random points.

    >>> from brinell.ops.norms import NORMS
    >>> check_norm(NORMS["L2"], sizes=(3,))
    """
    for n in sizes:
        key = rng.keys(n, torch.arange(samples, device="cpu"))
        a, b = rng.normal(rng.fold(key, 1), (n,)), rng.normal(rng.fold(key, 2), (n,))
        _check_size(norm, a, b)
        _check_steepest(norm, a, b)
        for eps in (1e-3, 0.3, 3.0):
            _check_project(norm, key, a * eps, torch.full((samples,), eps, dtype=torch.float32, device="cpu"))
            _check_random(norm, key, n, torch.full((samples,), eps, dtype=torch.float32, device="cpu"))
        _check_to_hyperplane(norm, key, a)
        fits = norm.size(torch.ones(1, n, dtype=torch.float32, device="cpu")) <= norm.diameter(n) * (1 + TOLERANCE)
        require(fits.all(), f"{norm.name}: two points of the unit box are farther apart than diameter says")


def _check_size(norm: Norm, a: Tensor, b: Tensor) -> None:
    require((norm.size(a) > 0).all(), f"{norm.name}: the size of a nonzero displacement is not positive")
    require((norm.size(0 * a) == 0).all(), f"{norm.name}: the size of zero is not zero")
    require(
        torch.allclose(norm.size(-3 * a), 3 * norm.size(a), 1e-5, 1e-6), f"{norm.name}: size(-3 d) is not 3 size(d)"
    )
    triangle = norm.size(a + b) <= (norm.size(a) + norm.size(b)) * (1 + 1e-5)
    require(triangle.all(), f"{norm.name}: sizes violate the triangle inequality")
    inner = (a * b).sum(1).abs()
    require((inner <= norm.size(a) * norm.dual_size(b) * (1 + 1e-5)).all(), f"{norm.name}: dual_size is too small")


def _check_steepest(norm: Norm, g: Tensor, other: Tensor) -> None:
    step = norm.steepest(g)
    require(
        torch.allclose(norm.size(step), torch.ones(len(g), dtype=torch.float32, device="cpu"), atol=1e-5),
        f"{norm.name}: the result of steepest does not have size 1",
    )
    gain, best = (step * g).sum(1), norm.dual_size(g)
    require(torch.allclose(gain, best, rtol=1e-4), f"{norm.name}: g · steepest(g) is not the dual norm of g")
    unit = other / norm.size(other)[:, None]
    require(((unit * g).sum(1) <= gain * (1 + 1e-5)).all(), f"{norm.name}: another step of size 1 gains more")
    require((norm.steepest(0 * g) == 0).all(), f"{norm.name}: steepest is not zero for a zero gradient")


def _box(key: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return bounds lo ≤ 0 ≤ hi of displacements in the unit box from random points, some on the box's boundary."""
    x0 = (1.4 * rng.uniform(rng.fold(key, 3), (n,)) - 0.2).clamp(0, 1)
    return -x0, 1 - x0


def _check_project(norm: Norm, key: Tensor, d: Tensor, eps: Tensor) -> None:
    lo, hi = _box(key, d.shape[1])
    for far in (0.1, 1.0, 30.0):
        v = far * d
        z = norm.project(v, eps, lo, hi)
        require(((z >= lo) & (z <= hi)).all(), f"{norm.name}: a projection leaves the box")
        size = norm.size(z.double())
        require((size <= eps.double() * (1 + TOLERANCE)).all(), f"{norm.name}: a projection leaves the ball")
        again = norm.project(z, eps, lo, hi)
        require(torch.allclose(again, z, rtol=1e-5, atol=1e-7), f"{norm.name}: projecting twice moves a point")
        # Optimality: no feasible point lies further along v − z than z.
        rival = norm.inside(rng.fold(key, 4), tuple(v.shape[1:]), eps).clamp(lo, hi)
        along = ((v - z) * (rival - z)).double().sum(1)
        scale = (v - z).double().norm(dim=1) * eps.double() + 1e-12
        require((along <= 1e-4 * scale).all(), f"{norm.name}: a feasible point is nearer than the projection")
        x0 = -lo
        x = norm.nearest(x0, x0 + v, eps, 0.0, 1.0)
        inside = Ball(norm, eps).contains(x0, x)
        require(inside.all(), f"{norm.name}: nearest leaves the ball or the box by more than rounding allows")
        inside = Ball(norm, eps).contains(x0, norm.retract(x0, x0 + v, eps, 0.0, 1.0))
        require(inside.all(), f"{norm.name}: retract leaves the ball or the box by more than rounding allows")


def _check_random(norm: Norm, key: Tensor, n: int, eps: Tensor) -> None:
    size = norm.size(norm.inside(key, (n,), eps).double())
    require((size <= eps.double() * (1 + TOLERANCE)).all(), f"{norm.name}: a point drawn by inside is outside the ball")
    for draw in (norm.inside, norm.start):
        drawn, other = draw(key, (n,), eps), draw(rng.fold(key, 1), (n,), eps)
        require(
            torch.equal(drawn[2:5], draw(key[2:5], (n,), eps[2:5])),
            f"{norm.name}: the noise of a row depends on other rows",
        )
        require(not torch.equal(drawn, other), f"{norm.name}: different keys give the same noise")


def _check_to_hyperplane(norm: Norm, key: Tensor, w: Tensor) -> None:
    lo, hi = (v.double() for v in _box(key, w.shape[1]))
    w = w.double()
    reach = (w.abs() * torch.where(w > 0, hi, -lo)).sum(1)
    for share in (0.0, 0.2, 0.9):
        gap = share * reach
        d = norm.to_hyperplane(w, gap, lo, hi)
        require(((d >= lo) & (d <= hi)).all(), f"{norm.name}: to_hyperplane leaves the box")
        require(
            torch.allclose((w * d).sum(1), gap, atol=1e-7),
            f"{norm.name}: the step of to_hyperplane does not end on the hyperplane",
        )
        least = gap / norm.dual_size(w)
        require(
            (norm.size(d) >= least * (1 - 1e-6)).all(),
            f"{norm.name}: the step of to_hyperplane is shorter than gap / dual_size(w)",
        )
