"""The region of allowed inputs, and intervals that bound every value of a network on it."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from brinell.certification.activations import Activation
from brinell.certification.network import TracedNetwork
from brinell.certification.operations import Affine
from brinell.certification.rounding import UNIT64, noise, size
from brinell.core.threat import TOLERANCE, Ball, Threat
from brinell.ops.norms import Norm
from brinell.ops.rowwise import flat, rows

# Relative widening for the float64 arithmetic in minimisers and centres.
WIDER = 1e-12


@dataclass(frozen=True, eq=False)
class Region:
    """The inputs that a threat allows around samples x0, in float64: the ball within the box, and within the mask.

    The radius includes the relative tolerance within which an adversarial example counts as inside the ball.
    """

    x0: Tensor
    norm: Norm
    eps: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, x: Tensor, threat: Threat) -> "Region":
        """Return the region of a batch; a threat with one radius per sample has those of this batch."""
        return cls.around(x, threat.ball(torch.arange(len(x), device="cpu"), x.device))

    @classmethod
    def around(cls, x: Tensor, ball: Ball) -> "Region":
        """Return the region of a batch within a ball."""
        low, high = ball.bounds(x)
        x0 = x.double()
        eps = ball.eps.double() * (1 + TOLERANCE) * (1 + WIDER)
        return cls(x0, ball.norm, eps, low.double() - x0, high.double() - x0)

    def rows(self, index: Tensor) -> "Region":
        """Return the region of the samples at `index`."""
        x0, eps, low, high = (v[index] for v in (self.x0, self.eps, self.low, self.high))
        return replace(self, x0=x0, eps=eps, low=low, high=high)

    @property
    def is_box(self) -> bool:
        """Whether the region is a box, so that intervals of a linear function are exact."""
        return self.norm.corners

    @property
    def plain(self) -> "Region":
        """The region without the tolerance on the radius: points of it stay inside when they are rounded to float32."""
        return replace(self, eps=self.eps / ((1 + TOLERANCE) * (1 + WIDER)))

    @property
    def clean(self) -> "Region":
        """The samples alone."""
        still = torch.zeros_like(self.x0)
        return replace(self, low=still, high=still)

    @property
    def single(self) -> "Region":
        """The region in float32."""
        x0, eps, low, high = (v.float() for v in (self.x0, self.eps, self.low, self.high))
        return replace(self, x0=x0, eps=eps, low=low, high=high)

    @cached_property
    def box(self) -> tuple[Tensor, Tensor]:
        """The smallest box that contains the region: per coordinate, the largest moves within ball and bounds."""
        # One coordinate alone can move by eps in every norm (L0: without limit), but never beyond the bounds.
        e = rows(torch.full_like(self.eps, torch.inf) if self.norm.counts else self.eps, self.x0)
        return self.x0 + torch.maximum(-e, self.low), self.x0 + torch.minimum(e, self.high)

    def least(self, a: Tensor) -> Tensor:
        """Return the minimum of a·x over the region for each of several linear functions, (b, s, *shape) → (b, s)."""
        s = a.shape[1]
        x0, low, high = (v.repeat_interleave(s, 0) for v in (self.x0, self.low, self.high))
        g = a.flatten(0, 1)
        moved = self.norm.least(g, self.eps.repeat_interleave(s, 0), low, high)
        return (moved + flat(g * x0).sum(1)).view(-1, s)

    def minimiser(self, a: Tensor) -> Tensor:
        """Return the point of the region with the smallest a·x per sample, (b, *shape) → (b, *shape)."""
        return self.x0 + self.norm.minimiser(a, self.plain.eps, self.low, self.high)


@dataclass(eq=False)
class Ranges:
    """Per node: the smallest and the largest value that float32 can compute in the region, and its rounding error."""

    lower: list[Tensor]
    upper: list[Tensor]
    noise: list[Tensor]

    def rows(self, index: Tensor) -> "Ranges":
        """Return the ranges of the samples at `index`."""
        return Ranges(*([v[index] for v in part] for part in (self.lower, self.upper, self.noise)))

    def copy(self) -> "Ranges":
        """Return ranges whose lists can be changed without changing these."""
        return Ranges(list(self.lower), list(self.upper), list(self.noise))


def start(network: TracedNetwork, region: Region) -> Ranges:
    """Return the ranges of the input alone."""
    lower, upper = region.box
    return Ranges([lower], [upper], [noise(network.nodes[0], [size(lower, upper)])])


def extend(network: TracedNetwork, ranges: Ranges) -> None:
    """Append the range of the next node, computed from the ranges of its inputs."""
    node = network.nodes[len(ranges.lower)]
    lows, highs = ([part[i] for i in node.inputs] for part in (ranges.lower, ranges.upper))
    sizes = [size(low, high) for low, high in zip(lows, highs, strict=True)]
    error = noise(node, sizes)
    low, high = _through(node.operation, lows, highs, sizes)
    ranges.lower.append(low - error)
    ranges.upper.append(high + error)
    ranges.noise.append(error)


def _through(operation: object, lows: list[Tensor], highs: list[Tensor], sizes: list[Tensor]) -> tuple[Tensor, Tensor]:
    if isinstance(operation, Activation):
        return operation.range(lows[0], highs[0])
    assert isinstance(operation, Affine)
    centre = operation.apply(*((low + high) / 2 for low, high in zip(lows, highs, strict=True)))
    wide = zip(lows, highs, sizes, strict=True)
    radius = operation.absolute(*((high - low) / 2 + 8 * UNIT64 * most for low, high, most in wide))
    return centre - radius, centre + radius


def interval_ranges(network: TracedNetwork, region: Region) -> Ranges:
    """Return the ranges of all nodes by interval arithmetic."""
    ranges = start(network, region)
    for _ in network.nodes[1:]:
        extend(network, ranges)
    return ranges
