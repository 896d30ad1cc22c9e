"""Coefficients of neighbouring neurons, on the part of an image that they read."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from brinell.certification.operations import Convolution, Shape


@dataclass(frozen=True, eq=False)
class Patch:
    """Coefficients (s, *part) of s functions on a part of a node that begins at `origin`; elsewhere they are zero.

    A part of an image has all channels and a rectangle of places. A part of any other node is the whole node.
    """

    a: Tensor
    origin: Shape

    @property
    def end(self) -> Shape:
        """The index after the last one along every dimension."""
        return tuple(at + n for at, n in zip(self.origin, self.a.shape[1:], strict=True))

    def of(self, v: Tensor) -> Tensor:
        """Return this part of the values of a node, in the precision of the coefficients."""
        places: Any = tuple(map(slice, self.origin, self.end))
        return v[places].to(self.a.dtype)

    def cost(self, v: Tensor) -> Tensor:
        """Return Σ |a|·v per function, for values v ≥ 0 of the node."""
        return (self.a.abs() * self.of(v)).flatten(1).sum(1)

    def spread(self, origin: Shape, end: Shape) -> Tensor:
        """Return the coefficients on a larger part."""
        ends = zip(self.origin, origin, self.end, end, strict=True)
        pad = [(at - first, last - own) for at, first, own, last in ends]
        return F.pad(self.a, [p for pair in reversed(pad) for p in pair]) if any(map(any, pad)) else self.a

    def plus(self, other: "Patch") -> "Patch":
        """Return the sum of two patches, on the smallest part that holds both."""
        part = tuple(map(min, self.origin, other.origin)), tuple(map(max, self.end, other.end))
        return Patch(self.spread(*part) + other.spread(*part), part[0])


def units(shape: Shape, together: int, like: Tensor) -> Iterator[tuple[Tensor, Patch]]:
    """Yield groups of neighbouring neurons of a node, as indices and as coefficients of 1.

    A group has at most `together` neurons. Coefficients have the precision and the device of `like`.
    """
    index = torch.arange(math.prod(shape), device=like.device).view(shape)
    image = len(shape) == 3
    side = max(1, math.isqrt(together // shape[0])) if image else 1
    sides = (together // side**2, side, side) if image else (together, *shape[1:])
    for first in itertools.product(*(range(0, n, m) for n, m in zip(shape, sides, strict=True))):
        places: Any = tuple(slice(at, at + m) for at, m in zip(first, sides, strict=True))
        all_channels: Any = (slice(None), *places[1:])
        chosen = index[places].flatten()
        # All channels of these places, or the whole node.
        part = index[all_channels] if image else index
        a = (chosen[:, None] == part.flatten()).to(like.dtype)
        yield chosen, Patch(a.view(-1, *part.shape), (0, *first[1:]) if image else (0,) * len(shape))


def moved(patch: Patch, conv: Convolution, shape: Shape) -> Patch:
    """Return the coefficients on the input of a convolution, without its padding."""
    a = F.conv_transpose2d(patch.a, conv.weight, None, conv.stride, 0, 0, conv.groups, conv.dilation)
    origin = [0]
    for d, (at, stride, pad) in enumerate(zip(patch.origin[1:], conv.stride, conv.padding, strict=True)):
        first, n = at * stride - pad, a.shape[2 + d]
        low, high = max(first, 0), min(first + n, shape[1 + d])
        if low >= high:
            return Patch(torch.zeros(len(a), shape[0], 1, 1, dtype=a.dtype, device=a.device), (0, 0, 0))
        a = a.narrow(2 + d, low - first, high - low)
        origin.append(low)
    return Patch(a, tuple(origin))
