"""The shortest step to a hyperplane inside a box: functions that `to_hyperplane` of all norms share.

Every solution moves coordinates towards the plane until Σ slope_i · |d_i| reaches the gap: all by the same amount
(Linf), in proportion to their slopes (L2), the steepest first (L1), or those with the largest gain first (L0). If
the box does not reach the plane, all coordinates move to a corner of the box.
"""

import torch
from torch import Tensor

from brinell.ops.rowwise import flat, running_sum
from brinell.ops.types import Doubles, Points, Scalars

# In L2 and L1, Croce & Hein's code ignores coordinates with smaller weights.
NEGLIGIBLE = 1e-8


def facing(w: Points, gap: Scalars, lo: Points, hi: Points, least: float = 0.0) -> tuple[Doubles, Doubles, Doubles]:
    """Return, per coordinate, the sign of d that moves w·d towards `gap`, the slope |w|, and the room in the box.

    All are float64 of shape (b, n). Slope and room are zero where |w| is zero or below `least`, or the gap is zero.

    >>> lo, hi = torch.tensor([[-0.2, -0.2]]), torch.tensor([[0.8, 0.8]])
    >>> [v.tolist() for v in facing(torch.tensor([[2.0, -1.0]]), torch.tensor([-1.0]), lo.double(), hi.double())]
    [[[-1.0, 1.0]], [[2.0, 1.0]], [[0.2..., 0.8...]]]
    """
    # Signs and choices are exact in any precision, and fastest as products in that of the points.
    v = flat(w) * gap.sign().to(w.dtype)[:, None]
    sign, slope = v.sign(), v.abs().double()
    room = torch.maximum(sign * flat(hi), sign * flat(lo)).clamp_(min=0).double()
    if least:
        seen = slope >= least
        slope, room = slope * seen, room * seen
    return sign, slope, room


def steepest_first(slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    """Return the length of each coordinate's move when coordinates move in order of slope until the gap is closed.

    >>> steepest_first(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 0.25]]), torch.tensor([1.0])).tolist()
    [[0.5, 0.25]]
    """
    return _in_turn(slope, slope, room, gap)


def largest_first(slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    """Return the length of each coordinate's move when coordinates move in order of gain (slope × room).

    >>> largest_first(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 0.25]]), torch.tensor([1.0])).tolist()
    [[1.0, 0.0]]
    """
    return _in_turn(slope * room, slope, room, gap)


def _in_turn(rank: Doubles, slope: Doubles, room: Doubles, gap: Scalars) -> Doubles:
    order = rank.argsort(dim=1, descending=True, stable=True)
    sorted_slope = slope.gather(1, order)
    gain = sorted_slope * room.gather(1, order)
    before = torch.cat([torch.zeros_like(gain[:, :1]), running_sum(gain)[:, :-1]], 1)
    missing = (gap[:, None] - before).clamp(min=0)
    # A coordinate that uses all its room moves exactly to its end, not to gain / slope.
    partial = missing / sorted_slope.clamp(min=torch.finfo(slope.dtype).tiny)
    length = torch.where(gain <= missing, room.gather(1, order), partial)
    return torch.empty_like(length).scatter(1, order, length)


def placed(sign: Doubles, length: Doubles, like: Points) -> Tensor:
    """Return the displacement sign · length in the shape and dtype of `like`."""
    return (sign * length).to(like.dtype).view_as(like)
