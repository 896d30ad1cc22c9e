"""Linf, L2, L1 and L0: sizes, exact projections on ball ∩ box, steepest steps, random points. Only this file knows p.

Displacements `d` are measured from the clean point; `lo <= 0 <= hi` are what the box leaves free around it, so that a
projection needs nothing else. Every projection is one water level: the height at which coordinates are cut off.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from brinell.ops import hyperplane, rng
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Doubles, Keys, Marks, Points, Scalars
from brinell.ops.water_filling import FEW_TURNS, capped_scale, water_level

TINY = 1e-12
Bound: TypeAlias = Any
"""A number, or a tensor of the points' shape."""
# Projections aim a little inside the sphere, so that rounding to float32 does not carry a point outside: for summed
# norms d is shortened by this factor, for Linf by half a unit in the last place of a number just below 1.
INSIDE = 1 - 2.0**-21
HALF_ULP = 2.0**-25


def inward(x0: Points, d: Points) -> Points:
    """x0 + d rounded towards x0, so that no coordinate is further from x0 than d says.

    Rounded to the nearest number, thousands of coordinates can all err outwards, which for a small radius adds up to
    more than any tolerance.

    >>> (inward(torch.tensor([[0.7]]), torch.tensor([[1e-8]])) - 0.7).item()
    0.0
    """
    x = x0 + d
    return torch.where((x - x0).abs() > d.abs(), torch.nextafter(x, x0), x)


class Norm(ABC):
    """What an attack may ask of a norm; rows in, rows out."""

    name: str
    sparse = False
    """Whether steepest steps move few coordinates, so that attacks steer how many."""
    corners = False
    """Whether the ball has corners in all coordinates at once, further out than the rest of its surface."""
    counts = False
    """Whether sizes are whole numbers."""

    @abstractmethod
    def size(self, d: Points) -> Scalars:
        """‖d‖ per row."""

    @abstractmethod
    def dual_size(self, g: Points) -> Scalars:
        """The dual norm of `g`: how fast a linear function with gradient g can grow per unit of this norm."""

    @abstractmethod
    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        """The nearest point (in the Euclidean sense) of {‖d‖ ≤ eps, lo ≤ d ≤ hi}."""

    def nearest(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        """`project` for points around x0 in a box [lo, hi], rounded so that the distance stays within eps."""
        return inward(x0, self.project(x - x0, eps, lo - x0, hi - x0)).clamp(lo, hi)

    def retract(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        """A cheaper map into the same set that AutoAttack's code uses; `nearest` where nothing else is said."""
        return self.nearest(x0, x, eps, lo, hi)

    @abstractmethod
    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        """A step of size 1 that increases the linear function g most; zero where g is zero.

        `density` is the share of coordinates that may move; only L1 uses it (0: the single best coordinate).
        """

    @abstractmethod
    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        """Uniform in the ball of radius eps."""

    @abstractmethod
    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        """AutoAttack's random start, before projection: on the face, on the sphere, or Gaussian (L1)."""

    @abstractmethod
    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        """A random direction: uniform on the sphere (in the cube for Linf), or towards a corner where there are any."""

    def stretch(self, v: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        """`v` times a factor, cut off at lo ≤ d ≤ hi, with the factor that makes the result's size eps.

        Where the box ends before, as far as it goes. Coordinates where v is zero stay there.
        """
        size, room = flat(v).double().abs(), flat(torch.where(v >= 0, hi, -lo)).double()
        factor = self._factor(size, room, eps.double() * INSIDE)[:, None]
        far = torch.where(size > 0, torch.minimum(factor * size, room), 0.0)
        return (flat(v).sign() * far).to(v.dtype).view_as(v)

    @abstractmethod
    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        """The factor t with ‖min(t · size, room)‖ = eps; inf where there is none."""

    @abstractmethod
    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        """The smallest d in this norm with w·d = gap and lo ≤ d ≤ hi; where none exists, the nearest corner."""

    @abstractmethod
    def shrink(self, d: Points, amount: Scalars) -> Points:
        """The z that minimises ‖z − d‖₂² / 2 + amount · ‖z‖ (the proximal operator of this norm)."""

    @abstractmethod
    def diameter(self, n: int) -> float:
        """The largest distance in the unit box of n coordinates."""


@dataclass(frozen=True)
class LinfNorm(Norm):
    """max |d_i|."""

    name = "Linf"
    corners = True

    def size(self, d: Points) -> Scalars:
        return flat(d).abs().amax(1)

    def dual_size(self, g: Points) -> Scalars:
        return flat(g).abs().sum(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        e = rows(eps, d)
        return d.clamp(torch.maximum(-e, lo), torch.minimum(e, hi))

    def nearest(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        e = rows((eps - HALF_ULP).clamp(min=0), x)
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
        # Coordinates without room for eps are cut off anyway; the largest of the others decides.
        return eps / torch.where(room >= eps[:, None], size, 0.0).amax(1)

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        sign, slope, room = hyperplane.facing(w, gap, lo, hi)
        level = capped_scale(slope, slope * room, gap.double().abs(), turns=FEW_TURNS)
        return hyperplane.placed(sign, torch.minimum(room, level[:, None]), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        # Moreau: what is taken away is the projection on the dual ball.
        wide = d.abs() + 1
        return d - L1Norm().project(d, amount, -wide, wide)

    def diameter(self, n: int) -> float:
        return 1.0


@dataclass(frozen=True)
class L2Norm(Norm):
    """√Σ d_i²."""

    name = "L2"

    def size(self, d: Points) -> Scalars:
        return flat(d).square().sum(1).sqrt()

    def dual_size(self, g: Points) -> Scalars:
        return self.size(g)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # The solution is s·d cut off at the box, with one s in [0, 1] per row: Σ min(s² d², room²) = eps².
        room = flat(torch.where(d >= 0, hi, -lo)).double()
        v, e = flat(d).double(), eps.double() * INSIDE
        s = capped_scale(v.square(), room.square(), e.square()).sqrt().clamp(max=1)
        return (v.sign() * torch.minimum(s[:, None] * v.abs(), room)).to(d.dtype).view_as(d)

    def retract(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        # Scaling, then clipping: every coordinate only moves towards x0, so the point stays in the ball.
        d = x - x0
        n = self.size(d)
        return inward(x0, d * rows(torch.minimum(eps * INSIDE, n) / (n + TINY), d)).clamp(lo, hi)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        return g / rows(self.size(g) + TINY, g)

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        t = self.start(rng.fold(key, 1), shape, eps)
        n = flat(t).shape[1]
        # In float64, since a power's last bit depends on its place in the tensor (see `rng`).
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

    def diameter(self, n: int) -> float:
        return float(n**0.5)


@dataclass(frozen=True)
class L1Norm(Norm):
    """Σ |d_i|."""

    name = "L1"
    sparse = True

    def size(self, d: Points) -> Scalars:
        return flat(d).abs().sum(1)

    def dual_size(self, g: Points) -> Scalars:
        return flat(g).abs().amax(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # The solution is clip(|d| − λ, 0, allowed) with one λ ≥ 0 per row. Written in t = max|d| − λ each coordinate
        # is a difference of two water columns, min(t, gap + allowed) − min(t, gap).
        v, e = flat(d).double(), eps.double() * INSIDE
        allowed = torch.minimum(v.abs(), flat(torch.where(d >= 0, hi, -lo)).double())
        top = v.abs().amax(1)
        gap = top[:, None] - v.abs()
        one = torch.ones_like(gap)
        t = water_level(torch.cat([gap, gap + allowed], 1), torch.cat([-one, one], 1), e)
        cut = (top - t).clamp(min=0)
        kept = torch.minimum((v.abs() - cut[:, None]).clamp(min=0), allowed)
        return (v.sign() * kept).to(d.dtype).view_as(d)

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        size = flat(g).abs()
        n = size.shape[1]
        # Filled on the device: a number brought from the host would make it wait.
        share = density if isinstance(density, torch.Tensor) else torch.full_like(size[:, 0], density)
        rank = ((1 - share) * n).floor().clamp(0, n - 1).long()
        threshold = size.sort(dim=1).values.gather(1, rank[:, None])
        kept = torch.where(size >= threshold, flat(g).sign(), 0.0)
        return (kept / (kept.abs().sum(1, keepdim=True) + 1e-10)).view_as(g)

    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        # Exponential spacings: n of n + 1 exponentials over their sum are uniform in the simplex.
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

    def diameter(self, n: int) -> float:
        return float(n)


@dataclass(frozen=True)
class L0Norm(Norm):
    """The number of coordinates that change: no norm (it does not scale), and what only some attacks can work with."""

    name = "L0"
    sparse = True
    counts = True

    def size(self, d: Points) -> Scalars:
        return (flat(d) != 0).sum(1).to(d.dtype)

    def dual_size(self, g: Points) -> Scalars:
        """The most a linear function grows with one coordinate, the box being of size 1."""
        return flat(g).abs().amax(1)

    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        # Of a coordinate that is kept, clip(d) stays; leaving it out costs d² instead of (d − clip(d))².
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
        # No factor changes a count: it is reached at once, or never.
        return torch.where((size > 0).sum(1) == eps, 1.0, torch.inf).to(size.dtype)

    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        # The coordinates that can bring the most come first; all but the last go to their ends.
        sign, slope, room = hyperplane.facing(w, gap, lo, hi)
        return hyperplane.placed(sign, hyperplane.largest_first(slope, room, gap.double().abs()), w)

    def shrink(self, d: Points, amount: Scalars) -> Points:
        return torch.where(d.square() > rows(2 * amount, d), d, 0.0)

    def diameter(self, n: int) -> float:
        return float(n)


def kept(gain: Doubles, eps: Scalars) -> Marks:
    """Mark the ⌊eps⌋ coordinates with the largest gains of each row, of equal ones the first; none without a gain.

    >>> kept(torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([2.5])).tolist()
    [[False, True, True]]
    """
    order = gain.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(gain.shape[1], device=gain.device).expand_as(order))
    return (rank < eps.floor()[:, None]) & (gain > 0)


LINF, L2, L1, L0 = LinfNorm(), L2Norm(), L1Norm(), L0Norm()
NORMS: dict[str, Norm] = {norm.name: norm for norm in (LINF, L2, L1)}
"""The norms, in which every attack works unless it says otherwise."""
SIZES: dict[str, Norm] = {**NORMS, L0.name: L0}
"""The norms and L0, in which only attacks work that say so."""
