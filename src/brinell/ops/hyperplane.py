"""The shortest way to a hyperplane inside a box: what the norms' `to_hyperplane` share.

Every solution fills coordinates towards the plane until Σ slope_i · |d_i| reaches the gap: all to one level (Linf),
each in proportion to its slope (L2), or the steepest first (L1). Where the box ends before, all fill up: the corner.
"""

import torch
from torch import Tensor

from brinell.ops.rowwise import flat, running_sum
from brinell.ops.types import Doubles, Points, Scalars

# Croce & Hein's code leaves alone coordinates with smaller weights, in L2 and L1.
NEGLIGIBLE = 1e-8


def facing(w: Points, gap: Scalars, lo: Points, hi: Points, least: float = 0.0) -> tuple[Doubles, Doubles, Doubles]:
    """Flat and in float64, per coordinate: the sign that brings w·d to `gap`, the slope |w|, the room the box leaves.

    Slope and room are zero where |w| is zero or below `least`, and everywhere in rows whose gap is zero.

    >>> lo, hi = torch.tensor([[-0.2, -0.2]]), torch.tensor([[0.8, 0.8]])
    >>> [v.tolist() for v in facing(torch.tensor([[2.0, -1.0]]), torch.tensor([-1.0]), lo.double(), hi.double())]
    [[[-1.0, 1.0]], [[2.0, 1.0]], [[0.2..., 0.8...]]]
    """
    v = flat(w).double() * gap.double().sign()[:, None]
    slope = torch.where(v.abs() < least, 0.0, v.abs())
    room = torch.where(v > 0, flat(hi), -flat(lo)).double().clamp(min=0)
    return v.sign(), slope, torch.where(slope > 0, room, 0.0)


def steepest_first(slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    """How far each coordinate goes when they are used up in the order of their slopes until the gap is closed.

    >>> steepest_first(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 0.25]]), torch.tensor([1.0])).tolist()
    [[0.5, 0.25]]
    """
    return _in_turn(slope, slope, room, gap)


def largest_first(slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    """The same in the order of what each coordinate can bring, slope times room: the fewest coordinates.

    >>> largest_first(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 0.25]]), torch.tensor([1.0])).tolist()
    [[1.0, 0.0]]
    """
    return _in_turn(slope * room, slope, room, gap)


def _in_turn(rank: Doubles, slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    order = rank.argsort(dim=1, descending=True, stable=True)
    sorted_slope = slope.gather(1, order)
    gain = sorted_slope * room.gather(1, order)
    before = torch.cat([torch.zeros_like(gain[:, :1]), running_sum(gain)[:, :-1]], 1)
    left = (gap[:, None] - before).clamp(min=0)
    # A coordinate that is used up goes to its end exactly, not to gain / slope.
    part = left / sorted_slope.clamp(min=torch.finfo(slope.dtype).tiny)
    length = torch.where(gain <= left, room.gather(1, order), part)
    return torch.empty_like(length).scatter(1, order, length)


def placed(sign: Doubles, length: Doubles, like: Points) -> Tensor:
    """The displacement, in the shape and precision of `like`."""
    return (sign * length).to(like.dtype).view_as(like)
