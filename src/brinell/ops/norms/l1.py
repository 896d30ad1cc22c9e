"""The L1 norm: the sum of absolute changes."""

from dataclasses import dataclass

import torch

from brinell.ops import rng
from brinell.ops.norms import hyperplane
from brinell.ops.norms.base import INSIDE, Norm
from brinell.ops.norms.water_filling import capped_scale, soft_threshold, water_level
from brinell.ops.rowwise import flat, may_branch, rows, running_sum, sorted_rows
from brinell.ops.types import Doubles, Keys, Points, Scalars


@dataclass(frozen=True)
class L1Norm(Norm):
    """The L1 norm Σ |d_i|."""

    name = "L1"
    sparse = True

    def size(self, d: Points) -> Scalars:
        return flat(d).abs().sum(1)

    def dual_size(self, g: Points) -> Scalars:
        return flat(g).abs().amax(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # The solution is clip(|d| − λ, 0, allowed) with one λ ≥ 0 per row. In terms of t = max|d| − λ each coordinate
        # equals min(t, gap + allowed) − min(t, gap), so t is a water level.
        if may_branch(d):
            return self._thresholded(d, eps.double() * INSIDE, lo, hi)
        v, e = flat(d).double(), eps.double() * INSIDE
        allowed = torch.minimum(v.abs(), flat(torch.where(d >= 0, hi, -lo)).double())
        top = v.abs().amax(1)
        gap = top[:, None] - v.abs()
        one = torch.ones_like(gap)
        t = water_level(torch.cat([gap, gap + allowed], 1), torch.cat([-one, one], 1), e)
        cut = (top - t).clamp(min=0)
        kept = torch.minimum((v.abs() - cut[:, None]).clamp(min=0), allowed)
        return (v.sign() * kept).to(d.dtype).view_as(d)

    def _thresholded(self, d: Points, e: Scalars, lo: Points, hi: Points) -> Points:
        """Return the same projection without sorting, for a CPU."""
        sign = flat(d).sign()
        v, room = flat(d).abs().double(), torch.maximum(sign * flat(hi), sign * flat(lo)).double()
        allowed = torch.minimum(v, room)
        cut = soft_threshold(v, allowed, e)
        kept = torch.minimum((v - cut[:, None]).clamp_(min=0), allowed)
        return (sign * kept).to(d.dtype).view_as(d)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        size = flat(g).abs()
        n = size.shape[1]
        # Filled on the device: a copy from the host would synchronise.
        share = density if isinstance(density, torch.Tensor) else torch.full_like(size[:, 0], density)
        rank = ((1 - share) * n).floor().clamp(0, n - 1).long()
        threshold = sorted_rows(size).gather(1, rank[:, None])
        kept = flat(g).sign() * (size >= threshold)
        return (kept / (kept.abs().sum(1, keepdim=True) + 1e-10)).view_as(g)

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        # Exponential spacings: n of n + 1 exponentials, divided by their sum, are uniform in the simplex.
        t = rng.exponential(rng.fold(key, 1), shape)
        rest = rng.exponential(rng.fold(key, 2), (1,))[:, 0]
        return t * rng.signs(rng.fold(key, 3), shape) * rows(eps / (self.size(t) + rest), t)

    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        return rng.normal(key, shape)

    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        return rng.exponential(rng.fold(key, 1), shape) * rng.signs(rng.fold(key, 3), shape)

    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        return capped_scale(size, room, eps)

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        sign, slope, room = hyperplane.facing(w, gap, lo, hi, hyperplane.NEGLIGIBLE)
        return hyperplane.placed(sign, hyperplane.steepest_first(slope, room, gap.double().abs()), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        return d.sign() * (d.abs() - rows(amount, d)).clamp(min=0)

    def minimiser(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # The steepest coordinates move first, each to its bound, until the sum of all moves is eps.
        slope, room = flat(g).abs(), flat(torch.where(g > 0, -lo, hi)).to(g.dtype)
        order = slope.argsort(dim=1, descending=True, stable=True)
        room = room.gather(1, order)
        before = torch.cat([torch.zeros_like(room[:, :1]), running_sum(room)[:, :-1]], 1)
        move = torch.minimum(room, (eps[:, None] - before).clamp(min=0))
        return -(flat(g).sign() * torch.empty_like(move).scatter(1, order, move)).view_as(g)

    def diameter(self, n: int) -> float:
        return float(n)
