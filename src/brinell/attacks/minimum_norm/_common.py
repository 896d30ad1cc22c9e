"""What attacks that look for the smallest distance share."""

import math

import torch
from torch import Tensor

from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.device_cache import table
from brinell.ops.losses import LOSSES
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Labels, Mask, Points, Scalars

# Below this a gradient has no direction.
FLAT = 1e-12


def aimed(loss: str) -> str:
    """What a targeted loss adds to an attack's name.

    >>> "fmn" + aimed("minimum-margin"), "fmn" + aimed("margin")
    ('fmn-t', 'fmn')
    """
    return "-t" if LOSSES[loss].targeted else ""


def fooled(a: Response, p: Batch) -> Mask:
    """Whether the points asked about are misclassified; of tied logits the first decides, as the engine does."""
    return (a.logits.argmax(1) != p.y) & a.logits.isfinite().all(1)


def ahead(a: Response) -> Scalars:
    """The loss, and 0 where it is no number, so that such a row stands still."""
    return a.loss.nan_to_num(0.0, 0.0, 0.0)


def free(g: Points, ball: Ball) -> Points:
    """The gradient along the coordinates that may change."""
    return g if ball.mask is None else g * ball.mask


def unit(g: Points) -> Points:
    """The gradient with Euclidean length 1; zero where it is zero."""
    return g / rows(flat(g).square().sum(1).sqrt().clamp(min=FLAT), g)


def begin(p: Batch, ball: Ball) -> Points:
    """Where told, inside the box, or the clean point."""
    return p.x if p.start is None else p.start.clamp(*ball.bounds(p.x))


def moved(p: Batch, d: Points, ball: Ball) -> Points:
    """The clean point moved by d, inside the box."""
    return (p.x + d).clamp(*ball.bounds(p.x))


# Powers and cosines are tabulated: their last bits depend on an element's place in a tensor.
@table
def _table(kind: str, steps: int, first: float, last: float, device: torch.device) -> Tensor:
    i = torch.arange(steps + 1, dtype=torch.float64)
    values = {
        "cosine": last + (first - last) * (1 + (math.pi * i / steps).cos()) / 2,
        "exponential": first * (last / first) ** (i / steps),
        "linear": first + (last - first) * i / steps,
        "power": first**i,
    }[kind]
    return values.float().to(device)


def _at(table: Tensor, i: Labels) -> Scalars:
    return table[i.clamp(0, len(table) - 1)]


def cosine(i: Labels, steps: int, first: float, last: float) -> Scalars:
    """From `first` at i = 0 to `last` at i = steps along half a cosine.

    >>> cosine(torch.tensor([0, 5, 10]), 10, 1.0, 0.0).tolist()
    [1.0, 0.5, 0.0]
    """
    return _at(_table("cosine", steps, first, last, i.device), i)


def exponential(i: Labels, steps: int, first: float, last: float) -> Scalars:
    """From `first` to `last` by a constant factor per step.

    >>> exponential(torch.tensor([0, 1, 2]), 2, 1.0, 0.25).tolist()
    [1.0, 0.5, 0.25]
    """
    return _at(_table("exponential", steps, first, last, i.device), i)


def linear(i: Labels, steps: int, first: float, last: float) -> Scalars:
    """From `first` to `last` by a constant difference per step.

    >>> linear(torch.tensor([0, 1, 2]), 2, 1.0, 0.0).tolist()
    [1.0, 0.5, 0.0]
    """
    return _at(_table("linear", steps, first, last, i.device), i)


def power(i: Labels, steps: int, base: float) -> Scalars:
    """`base` to the i, for i up to `steps`.

    >>> power(torch.tensor([0, 3]), 9, 0.5).tolist()
    [1.0, 0.125]
    """
    return _at(_table("power", steps, base, 0.0, i.device), i)
