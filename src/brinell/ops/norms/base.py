"""`Norm`, the base class of all norms, and `inward`, the rounding that keeps points inside the ball."""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch

from brinell.ops.rowwise import flat, may_branch
from brinell.ops.types import Doubles, Keys, Points, Scalars

TINY = 1e-12
Bound: TypeAlias = Any
"""A number, or a tensor of the points' shape."""
# Projections aim slightly inside the sphere, so that rounding to float32 does not move a point out of the ball.
# L2 and L1 multiply the radius by INSIDE. Linf subtracts half a unit in the last place of a number just below 1.
INSIDE = 1 - 2.0**-21
HALF_ULP = 2.0**-25


def inward(x0: Points, d: Points) -> Points:
    """Return x0 + d rounded towards x0, so that no coordinate moves further than d says.

    With rounding to nearest, thousands of coordinates can all err outwards. For a small radius the sum of these errors
    exceeds any tolerance.

    >>> (inward(torch.tensor([[0.7]]), torch.tensor([[1e-8]])) - 0.7).item()
    0.0
    """
    x = x0 + d
    if not may_branch(x) or x.dtype != torch.float32:
        return torch.where((x - x0).abs() > d.abs(), torch.nextafter(x, x0), x)
    # The same in a third of the time: the bits of a float are a number, and the next float is one more or one less.
    outward = (x - x0).abs_().sub_(d.abs()).sign_().clamp_(min=0).nan_to_num_(0.0)
    moved = outward.mul_(d.sign()).mul_(x.sign()).to(torch.int32)
    return (x.view(torch.int32) - moved).view(torch.float32)


class Norm(ABC):
    """A norm with the operations that attacks need. Every method treats each row of its tensors separately."""

    name: str
    sparse = False
    """Whether steepest steps move few coordinates, so that attacks must choose how many coordinates move (L1, L0)."""
    corners = False
    """Whether the ball has corners that are farther from its centre than the rest of its surface (Linf)."""
    counts = False
    """Whether sizes are counts (L0)."""

    @abstractmethod
    def size(self, d: Points) -> Scalars:
        """Return ‖d‖ per row."""

    @abstractmethod
    def dual_size(self, g: Points) -> Scalars:
        """Return the dual norm of g per row: the largest g·d over all d of norm at most 1."""

    @abstractmethod
    def project(self, d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        """Return, per row, the Euclidean projection of d on the set of all z with ‖z‖ ≤ eps and lo ≤ z ≤ hi."""

    def nearest(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        """Return x projected on the ball around x0 within the box [lo, hi], rounded so that no distance exceeds eps."""
        return inward(x0, self.project(x - x0, eps, lo - x0, hi - x0)).clamp(lo, hi)

    def retract(self, x0: Points, x: Points, eps: Scalars, lo: Bound, hi: Bound) -> Points:
        """Return x moved into ball and box as AutoAttack does it: `nearest`; L2 scales x and then clips it instead."""
        return self.nearest(x0, x, eps, lo, hi)

    @abstractmethod
    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        """Return, per row, the step d of norm 1 with the largest g·d; zero in rows where g is zero.

        `density` is the share of coordinates that may move. Only L1 uses it; 0 moves the single best coordinate.
        """

    @abstractmethod
    def inside(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        """Draw, per row, a displacement uniformly from the ball of radius eps."""

    @abstractmethod
    def start(self, key: Keys, shape: tuple[int, ...], eps: Scalars) -> Points:
        """Draw AutoAttack's random start, before projection: on a face (Linf), on the sphere (L2), Gaussian (L1)."""

    @abstractmethod
    def direction(self, key: Keys, shape: tuple[int, ...], corner: bool = False) -> Points:
        """Draw a random direction per row, of any length. With `corner`, in Linf, it points to a corner of the cube."""

    def stretch(self, v: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        """Return factor · v clipped to [lo, hi], with the factor for which the result has norm eps.

        In rows where no factor gives norm eps, every coordinate moves to its bound. Zeros of v stay zero.
        """
        size, room = flat(v).double().abs(), flat(torch.where(v >= 0, hi, -lo)).double()
        factor = self._factor(size, room, eps.double() * INSIDE)[:, None]
        far = torch.where(size > 0, torch.minimum(factor * size, room), 0.0)
        return (flat(v).sign() * far).to(v.dtype).view_as(v)

    @abstractmethod
    def _factor(self, size: Doubles, room: Doubles, eps: Scalars) -> Scalars:
        """Return, per row, the factor t with ‖min(t · size, room)‖ = eps; inf in rows without such a t."""

    @abstractmethod
    def to_hyperplane(self, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
        """Return the smallest d with lo ≤ d ≤ hi and w·d = gap; if no such d exists, that with w·d closest to gap."""

    @abstractmethod
    def shrink(self, d: Points, amount: Scalars) -> Points:
        """Return, per row, the z that minimises ‖z − d‖₂² / 2 + amount · ‖z‖: the proximal operator of the norm."""

    @abstractmethod
    def minimiser(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
        """Return, per row, the d that minimises g·d among all d with ‖d‖ ≤ eps and lo ≤ d ≤ hi, where lo ≤ 0 ≤ hi."""

    def least(self, g: Points, eps: Scalars, lo: Points, hi: Points) -> Scalars:
        """Return, per row, the minimum of g·d over all d with ‖d‖ ≤ eps and lo ≤ d ≤ hi, where lo ≤ 0 ≤ hi.

        Its gradient with respect to g is the minimiser.
        """
        with torch.no_grad():
            d = self.minimiser(g, eps, lo, hi)
        return flat(g * d).sum(1)

    @abstractmethod
    def diameter(self, n: int) -> float:
        """Return the largest distance, in this norm, between two points of the unit box with n coordinates."""
