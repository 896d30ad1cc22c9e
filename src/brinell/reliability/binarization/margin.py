"""Separate two sets of points by the hyperplane of widest margin, for many samples at once, in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.ops.rowwise import concat

# The margin is at least this share of the optimum (by duality), unless the steps run out.
QUALITY = 0.99
# The weight of a violated margin: start, growth factor, and the value at which a set counts as inseparable.
FIRST, GROWTH, LAST = 1e2, 30.0, 1e13
STEPS = 120
# Step lengths tried along a Newton direction.
HALVINGS = 14
# Samples per chunk, always this many: a row's arithmetic must not depend on its neighbours.
CHUNK = 8


@dataclass(frozen=True)
class Separation:
    """One hyperplane per sample, with the normal vector w (`weight`).

    Features φ have w·φ ≥ `high` at boundary points and w·φ ≤ `low` at inner points; high > low if the sets are
    separated. `quality` is a lower bound on the margin divided by the widest possible margin.
    """

    weight: Tensor
    low: Tensor
    high: Tensor
    quality: Tensor

    @property
    def middle(self) -> Tensor:
        """The threshold on w·φ in the middle of the margin, per sample."""
        return (self.low + self.high) / 2

    @property
    def found(self) -> Tensor:
        """A mask of the samples whose two sets are separated."""
        return (self.high > self.low) & self.weight.isfinite().all(1)


def hard_margin(inner: Tensor, boundary: Tensor) -> Separation:
    """Return the widest-margin hyperplanes between inner points (n, N, f) and boundary points (n, B, f).

    Method: minimise ‖w‖² plus a penalty, a factor times the squared margin violations; increase the factor until the
    sets are separated and the margin is within 1 % of an upper bound (`_quality`). For each factor use Newton's method
    on this piecewise quadratic function, starting from the previous solution (Mangasarian 2002). Inputs are centred and
    scaled first. If there are more features than points, the points are rotated into as many coordinates as there are
    points. The result for a sample depends on that sample alone.
    """
    parts = [_chunk(i, b) for i, b in zip(inner.split(CHUNK), boundary.split(CHUNK), strict=True)]
    return concat(parts)


def _chunk(inner: Tensor, boundary: Tensor) -> Separation:
    n = len(inner)
    index = torch.arange(CHUNK, device=inner.device).clamp(max=n - 1)
    inner, boundary = inner[index].double(), boundary[index].double()
    origin = boundary[:, :1]
    x = torch.cat([boundary - origin, inner - origin], 1)
    scale = x.square().sum(2).mean(1).sqrt().clamp(min=torch.finfo(x.dtype).tiny)
    x = x / scale[:, None, None]
    basis = None
    if x.shape[2] > x.shape[1]:
        basis, r = torch.linalg.qr(x.mT)
        x = r.mT
    w, quality = _solve(x, boundary.shape[1])
    if basis is not None:
        w = (basis @ w[:, :, None])[:, :, 0]
    w = w / w.norm(dim=1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
    # Evaluated on the points themselves, where it must hold.
    low, high = (inner @ w[:, :, None])[:, :, 0].amax(1), (boundary @ w[:, :, None])[:, :, 0].amin(1)
    return Separation(w[:n], low[:n], high[:n], quality[:n])


def _solve(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return w (n, f) and its quality (n,) for points x (n, m, f), of which the first `first` are boundary points."""
    n, m, f = x.shape
    side = torch.where(torch.arange(m, device=x.device) < first, 1.0, -1.0).to(x.dtype)
    z = torch.cat([x, torch.ones_like(x[:, :, :1])], 2) * side[None, :, None]
    u, cost = z.new_zeros(n, f + 1), z.new_full((n,), FIRST)
    best, quality = z.new_zeros(n, f), z.new_full((n,), -torch.inf)
    ridge = torch.ones(f + 1, dtype=z.dtype, device=z.device)
    ridge[f] = torch.finfo(z.dtype).eps
    going = torch.ones(n, dtype=torch.bool, device=z.device)
    for _ in range(STEPS):
        slack = (1 - (z @ u[:, :, None])[:, :, 0]).clamp(min=0)
        share = _quality(x, first, u[:, :f], slack)
        better = going & (share > quality)
        best, quality = torch.where(better[:, None], u[:, :f], best), torch.where(better, share, quality)
        going = going & (quality < QUALITY) & (cost <= LAST)
        if not bool(going.any()):
            break
        moved, still = _newton(z, u, slack, cost, ridge)
        u = torch.where(going[:, None], moved, u)
        # Newton's method has converged for this weight.
        cost = torch.where(going & still, cost * GROWTH, cost)
    return best, quality


def _quality(x: Tensor, first: int, w: Tensor, slack: Tensor) -> Tensor:
    """Return w's margin divided by an upper bound on all margins: the distance of two points, one of each hull."""
    value = (x @ w[:, :, None])[:, :, 0]
    gap = value[:, :first].amin(1) - value[:, first:].amax(1)
    hull = []
    for side in (slice(first), slice(first, None)):
        a = slack[:, side] + torch.finfo(x.dtype).tiny
        hull.append(((a / a.sum(1, keepdim=True))[:, None] @ x[:, side])[:, 0])
    apart = (hull[0] - hull[1]).norm(dim=1)
    return gap / (w.norm(dim=1) * apart).clamp(min=torch.finfo(x.dtype).tiny)


def _newton(z: Tensor, u: Tensor, slack: Tensor, cost: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """Return u (w and bias) after one Newton step of the best of several lengths, and a mask of converged samples."""
    active = z * (slack > 0)[:, :, None]
    # Divided by the cost to keep the numbers moderate.
    hessian: Any = active.mT @ active + torch.diag_embed(ridge / cost[:, None])
    slope = u * ridge / cost[:, None] - (active.mT @ slack[:, :, None])[:, :, 0]
    factor, info = torch.linalg.cholesky_ex(hessian)
    step = -torch.cholesky_solve(slope[:, :, None], factor)[:, :, 0]
    step = torch.where((info == 0)[:, None], step, -slope)
    lengths = 0.5 ** torch.arange(HALVINGS, dtype=z.dtype, device=z.device)
    along = (z @ step[:, :, None]) * lengths
    violated = ((1 - (z @ u[:, :, None])) - along).clamp(min=0).square().sum(1)
    tried = u[:, :, None] + step[:, :, None] * lengths
    value = violated + (tried.square() * ridge[None, :, None]).sum(1) / cost[:, None]
    now = slack.square().sum(1) + (u.square() * ridge).sum(1) / cost
    low, at = value.min(1)
    fell = low < now * (1 - 1e-12)
    moved = torch.where(fell[:, None], u + step * lengths[at][:, None], u)
    return moved, ~fell | ((now - low) < 1e-6 * now)
