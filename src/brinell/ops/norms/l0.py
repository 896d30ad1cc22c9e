"""The L0 "norm": the number of changed coordinates."""

from dataclasses import dataclass

import torch

from brinell.ops import rng
from brinell.ops.norms import hyperplane
from brinell.ops.norms.base import Bound, Norm
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Doubles, Keys, Marks, Points, Scalars


@dataclass(frozen=True)
class L0Norm(Norm):
    """The number of changed coordinates. Only some attacks support it. It is not a norm: 2d and d have equal size."""

    name = "L0"
    sparse = True
    counts = True

    def size(self, d: Points) -> Scalars:
        return (flat(d) != 0).sum(1).to(d.dtype)

    def dual_size(self, g: Points) -> Scalars:
        """Return max |g_i| per row: the largest growth of g·d when one coordinate moves by 1."""
        return flat(g).abs().amax(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # A kept coordinate becomes clip(d). Dropping it costs d² instead of (d − clip(d))².
        v = d.clamp(lo, hi)
        gain = flat(d).double().square() - flat(d - v).double().square()
        return (flat(v) * kept(gain, eps)).view_as(d)

    def nearest(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        v = x.clamp(lo, hi)
        gain = flat(x - x0).double().square() - flat(x - v).double().square()
        return torch.where(kept(gain, eps).view_as(x), v, x0)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        size = flat(g).abs()
        best = size.argmax(1, keepdim=True)
        step = torch.zeros_like(size).scatter(1, best, flat(g).sign().gather(1, best))
        return step.view_as(g)

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = 2 * rng.uniform(rng.fold(key, 1), shape) - 1
        return (flat(t) * kept(flat(rng.uniform(rng.fold(key, 2), shape)).double(), eps)).view_as(t)

    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        return self.inside(key, shape, eps)

    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        return 2 * rng.uniform(key, shape) - 1

    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        # No factor changes a count: either the count is right already, or no factor exists.
        return torch.where((size > 0).sum(1) == eps, 1.0, torch.inf).to(size.dtype)

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        # Coordinates with the largest possible gain come first. All but the last one move to their ends.
        sign, slope, room = hyperplane.facing(w, gap, lo, hi)
        return hyperplane.placed(sign, hyperplane.largest_first(slope, room, gap.double().abs()), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        return torch.where(d.square() > rows(2 * amount, d), d, 0.0)

    def minimiser(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        d = torch.where(g > 0, lo, hi).to(g.dtype)
        return (flat(d) * kept(-flat(g * d).double(), eps)).view_as(g)

    def diameter(self, n: int) -> float:
        return float(n)


def kept(gain: Doubles, eps: Scalars) -> Marks:
    """Return the mask, (b, n), of the ⌊eps⌋ coordinates of each row with the largest positive gains.

    >>> kept(torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([2.5])).tolist()
    [[False, True, True]]
    """
    order = gain.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(gain.shape[1], device=gain.device).expand_as(order))
    return (rank < eps.floor()[:, None]) & (gain > 0)
