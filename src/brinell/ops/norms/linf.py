"""The Linf norm: the largest absolute change."""

from dataclasses import dataclass

import torch

from brinell.ops import rng
from brinell.ops.norms import hyperplane
from brinell.ops.norms.base import HALF_ULP, TINY, Bound, Norm
from brinell.ops.norms.l1 import L1Norm
from brinell.ops.norms.water_filling import FEW_ITERATIONS, capped_scale
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Doubles, Keys, Points, Scalars


@dataclass(frozen=True)
class LinfNorm(Norm):
    """The Linf norm max |d_i|."""

    name = "Linf"
    corners = True

    def size(self, d: Points) -> Scalars:
        return d.reshape(len(d), -1).abs().amax(1)

    def dual_size(self, g: Points) -> Scalars:
        return flat(g).abs().sum(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        e = rows(eps, d)
        return d.clamp(torch.maximum(-e, lo), torch.minimum(e, hi))

    def nearest(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        e = (eps - HALF_ULP).clamp(min=0).view(-1, *[1] * (x.ndim - 1))
        return x.clamp(x0 - e, x0 + e).clamp(lo, hi)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        return g.sign()

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = 2 * rng.uniform(key, shape) - 1
        return rows(eps, t) * t

    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = 2 * rng.uniform(key, shape) - 1
        return rows(eps / (self.size(t) + TINY), t) * t

    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        return rng.signs(key, shape) if corner else 2 * rng.uniform(key, shape) - 1

    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        # Coordinates without room for eps are clipped in any case. The largest of the others determines the factor.
        return eps / torch.where(room >= eps[:, None], size, 0.0).amax(1)

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        sign, slope, room = hyperplane.facing(w, gap, lo, hi)
        level = capped_scale(slope, slope * room, gap.double().abs(), iterations=FEW_ITERATIONS)
        return hyperplane.placed(sign, torch.minimum(room, level[:, None]), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        # Moreau decomposition: the difference is the projection on the dual ball.
        wide = d.abs() + 1
        return d - L1Norm().project(d, amount, -wide, wide)

    def minimiser(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        e = rows(eps, g)
        return torch.where(g > 0, torch.maximum(-e, lo), torch.minimum(e, hi)) * (g != 0)

    def diameter(self, n: int) -> float:
        return 1.0
