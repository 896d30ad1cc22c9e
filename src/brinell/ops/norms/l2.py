"""The L2 norm: the Euclidean length."""

from dataclasses import dataclass

import torch

from brinell.ops import rng
from brinell.ops.norms import hyperplane
from brinell.ops.norms.base import INSIDE, TINY, Bound, Norm, inward
from brinell.ops.norms.water_filling import capped_scale, scaled
from brinell.ops.rowwise import flat, may_branch, rows
from brinell.ops.types import Doubles, Keys, Points, Scalars


@dataclass(frozen=True)
class L2Norm(Norm):
    """The L2 norm √Σ d_i²."""

    name = "L2"

    def size(self, d: Points) -> Scalars:
        return flat(d).square().sum(1).sqrt()

    def dual_size(self, g: Points) -> Scalars:
        return self.size(g)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # The solution is s·d clipped to the box, with one s in [0, 1] per row: Σ min(s² d², room²) = eps².
        if may_branch(d) and d.dtype == torch.float32:
            return scaled(d, eps.double() * INSIDE, lo, hi)
        room = flat(torch.where(d >= 0, hi, -lo)).double()
        v, e = flat(d).double(), eps.double() * INSIDE
        s = capped_scale(v.square(), room.square(), e.square()).sqrt().clamp(max=1)
        return (v.sign() * torch.minimum(s[:, None] * v.abs(), room)).to(d.dtype).view_as(d)

    def retract(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        # Scale, then clip. Clipping moves every coordinate towards x0, so the point stays in the ball.
        d = x - x0
        n = self.size(d)
        return inward(x0, d * rows(torch.minimum(eps * INSIDE, n) / (n + TINY), d)).clamp(lo, hi)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        return g / rows(self.size(g) + TINY, g)

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = self.start(rng.fold(key, 1), shape, eps)
        n = flat(t).shape[1]
        # In float64: the last bit of a float32 power depends on its position in the tensor (see `rng`).
        radius = (rng.uniform(rng.fold(key, 2), (1,))[:, 0].double() ** (1 / n)).float()
        return t * rows(radius, t)

    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = rng.normal(key, shape)
        return rows(eps / (self.size(t) + TINY), t) * t

    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        return rng.normal(key, shape)

    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        return capped_scale(size.square(), room.square(), eps.square()).sqrt()

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        sign, slope, room = hyperplane.facing(w, gap, lo, hi, hyperplane.NEGLIGIBLE)
        end = room / slope.clamp(min=hyperplane.NEGLIGIBLE)
        level = capped_scale(slope.square(), slope * room, gap.double().abs())[:, None]
        return hyperplane.placed(sign, torch.where(end <= level, room, level * slope), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        return d * rows((1 - amount / self.size(d).clamp(min=TINY)).clamp(min=0), d)

    def minimiser(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        return -(flat(g).sign() * self._lengths(g, eps, lo, hi)[0]).view_as(g)

    def least(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Scalars:
        # The value of the dual problem. It is a lower bound whatever the factor, so the factor may be rounded.
        with torch.no_grad():
            length, factor = self._lengths(g, eps, lo, hi)
        linear = (flat(g).abs() * length).sum(1)
        return -linear - (eps.square() - length.square().sum(1)).clamp(min=0) / (2 * factor)

    def _lengths(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> tuple[Doubles, Scalars]:
        """Return the length of each coordinate's move in the minimiser, and the factor that |g| has in it."""
        size, room = flat(g).abs(), flat(torch.where(g > 0, -lo, hi)).to(g.dtype)
        factor = self._factor(size, room, eps)
        return torch.where(size > 0, torch.minimum(factor[:, None] * size, room), 0.0), factor

    def diameter(self, n: int) -> float:
        return float(n**0.5)
