"""CROWN from the neurons of a convolution: coefficients only on the window of values that a neuron depends on.

A neuron of an early convolution reads a small part of the input. Its window grows with every convolution on the way
back. Where it is as large as the whole image, or the way branches, the coefficients are laid out in full.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from brinell.certification.activations import Activation, Lines
from brinell.certification.interval import Ranges, Region
from brinell.certification.network import TracedNetwork
from brinell.certification.operations import Convolution, Scale, Shape


@dataclass(frozen=True, eq=False)
class Window:
    """Coefficients (b, 2, s, channels, *width) of s neurons per sample and of their negatives, on windows of a node.

    A window begins at `start`, (b, s, d), which lies between `first` and `last` and may lie outside of the image.
    Coefficients outside of the image are zero. `total`, (b, 2, s), is the constant of the steps made
    so far, less their rounding errors.
    """

    a: Tensor
    start: Tensor
    first: Shape
    last: Shape
    total: Tensor

    @property
    def width(self) -> Shape:
        """The number of values of the window along every dimension of the image."""
        return tuple(self.a.shape[4:])

    def of(self, v: Tensor, shape: Shape) -> Tensor:
        """Return the windows of values (b or 1, *shape), as (b, s, channels, *width); zero outside of the image."""
        v, places = _windows(v.expand(len(self.a), -1, *shape[1:]), self)
        return v[places]

    def laid_out(self, shape: Shape) -> Tensor:
        """Return the coefficients of all values of the node, (b, 2·s, *shape)."""
        b, _, s, *_ = self.a.shape
        beyond = self.beyond(shape)
        wide = [n + p + q for (p, q), n in zip(beyond, shape[1:], strict=True)]
        out = torch.zeros(b * s, 2, shape[0], *wide, dtype=self.a.dtype, device=self.a.device)
        start = self.start.flatten(0, 1)
        views = out
        for d, w in enumerate(self.width):
            views = views.unfold(3 + d, w, 1)
        places = tuple(start[:, d] + p for d, (p, _) in enumerate(beyond))
        row = torch.arange(b * s, device=start.device)
        at: Any = (row, slice(None), slice(None), *places)
        views[at] = self.a.transpose(1, 2).flatten(0, 1)
        inside = [slice(p, p + n) for (p, _), n in zip(beyond, shape[1:], strict=True)]
        whole: Any = (slice(None), slice(None), slice(None), *inside)
        laid: Tensor = out[whole].unflatten(0, (b, s))
        return laid.transpose(1, 2).flatten(1, 2)

    def beyond(self, shape: Shape) -> list[tuple[int, int]]:
        """Return, along every dimension, how many values windows reach beyond both ends of the image."""
        ends = zip(self.first, self.last, self.width, shape[1:], strict=True)
        return [(max(0, -first), max(0, last + width - size)) for first, last, width, size in ends]


def _windows(v: Tensor, w: Window) -> tuple[Tensor, tuple[Tensor | slice, ...]]:
    """Return every window of values, and the places of the windows of w among them."""
    beyond = w.beyond(tuple(v.shape[1:]))
    if any(map(any, beyond)):
        v = F.pad(v, [p for pair in reversed(beyond) for p in pair])
    for d, n in enumerate(w.width):
        v = v.unfold(2 + d, n, 1)
    row = torch.arange(len(v), device=v.device)[:, None]
    return v, (row, slice(None), *(w.start[:, :, d] + p for d, (p, _) in enumerate(beyond)))


def largest(network: TracedNetwork, k: int) -> int:
    """Return how many values the largest coefficients have that `windowed` makes on the way back from node k."""
    width, most = (1,) * (len(network.nodes[k].shape) - 1), 1
    while _steps(network, k, width):
        node = network.nodes[k]
        if isinstance(node.operation, Convolution):
            width = _grown(node.operation, width)
        k = node.inputs[0]
        most = max(most, _numel((network.nodes[k].shape[0], *width)))
    return most if k == 0 else max(most, network.widest)


def _steps(network: TracedNetwork, k: int, width: Shape) -> bool:
    """Return whether a window of node k can be moved to the input of the node and is worth it."""
    node = network.nodes[k]
    if not isinstance(node.operation, Convolution | Activation | Scale) or len(width) not in (1, 2, 3):
        return False
    return _numel((node.shape[0], *width)) < _numel(node.shape)


def _grown(conv: Convolution, width: Shape) -> Shape:
    sizes = zip(width, conv.stride, conv.dilation, conv.weight.shape[2:], strict=True)
    return tuple((w - 1) * stride + dilation * (n - 1) + 1 for w, stride, dilation, n in sizes)


def _numel(shape: Shape) -> int:
    return int(torch.Size(shape).numel())


def windowed(
    network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], k: int, index: Tensor
) -> tuple[Window, int]:
    """Return coefficients for the neurons `index` of node k, (b, s), moved back as far as windows are worth it.

    Also return the node that they belong to.
    """
    w = _units(index, network.nodes[k].shape)
    while _steps(network, k, w.width):
        node = network.nodes[k]
        if isinstance(node.operation, Activation):
            w = _relaxed(w, ranges.noise[k], lines[k], node.shape)
        elif isinstance(node.operation, Scale):
            w = _scaled(_charged(w, ranges.noise[k], node.shape), node.operation, node.shape)
        else:
            assert isinstance(node.operation, Convolution)
            w = _moved(_charged(w, ranges.noise[k], node.shape), node.operation, network.shapes(k)[0])
        k = node.inputs[0]
    return w, k


def _units(index: Tensor, shape: Shape) -> Window:
    """Return windows of one value: the neurons themselves, and their negatives."""
    channel, *at = torch.unravel_index(index, shape)
    b, s = index.shape
    a = torch.zeros(b, 2, s, shape[0], dtype=torch.float64, device=index.device)
    a[:, 0].scatter_(2, channel[:, :, None], 1.0)
    a[:, 1].scatter_(2, channel[:, :, None], -1.0)
    total = torch.zeros(b, 2, s, dtype=a.dtype, device=a.device)
    ends = (0,) * len(at), tuple(n - 1 for n in shape[1:])
    return Window(a.view(*a.shape, *[1] * len(at)), torch.stack(at, 2), *ends, total)


def _sums(a: Tensor, v: Tensor) -> Tensor:
    """Return Σ a·v for coefficients (b, 2, s, …) and values (b, s, …), as (b, 2, s)."""
    return (a * v[:, None]).flatten(3).sum(3)


def _charged(w: Window, noise: Tensor, shape: Shape) -> Window:
    """Return the window with the rounding errors of its node subtracted."""
    return replace(w, total=w.total - _sums(w.a.abs(), w.of(noise, shape)))


def _relaxed(w: Window, noise: Tensor, lines: Lines, shape: Shape) -> Window:
    """Return the window after replacing an activation function by its lines, moved by its rounding errors."""
    lowest, highest = lines.lower_intercept - noise, lines.upper_intercept + noise
    below, above, lowest, highest = (w.of(v, shape) for v in (lines.lower_slope, lines.upper_slope, lowest, highest))
    positive, negative = w.a.clamp(min=0), w.a.clamp(max=0)
    total = w.total + _sums(positive, lowest) + _sums(negative, highest)
    return replace(w, a=torch.addcmul(positive * below[:, None], negative, above[:, None]), total=total)


def _scaled(w: Window, scale: Scale, shape: Shape) -> Window:
    total = w.total
    if scale.offset is not None:
        total = total + _sums(w.a, w.of(_whole(scale.offset, shape), shape))
    return replace(w, a=w.a * w.of(_whole(scale.factor, shape), shape)[:, None], total=total)


def _whole(v: Tensor, shape: Shape) -> Tensor:
    return v.expand(1, *shape)


def _moved(w: Window, conv: Convolution, shape: Shape) -> Window:
    """Return the window moved back through a convolution; nothing of it lies in the padding."""
    total = w.total
    if conv.offset is not None:
        total = total + w.a.flatten(4).sum(4) @ conv.offset.flatten()
    none = (0,) * len(conv.stride)
    a = conv.pulled(w.a.flatten(0, 2), none, _grown(conv, w.width)).unflatten(0, w.a.shape[:3])
    step, pad = (torch.tensor(v, dtype=torch.long, device=w.start.device) for v in (conv.stride, conv.padding))
    first, last = (_before(at, conv) for at in (w.first, w.last))
    moved = Window(a, w.start * step - pad, first, last, total)
    if any(map(any, moved.beyond(shape))):
        one = torch.ones(1, 1, *shape[1:], dtype=a.dtype, device=a.device)
        return replace(moved, a=a * moved.of(one, (1, *shape[1:]))[:, None])
    return moved


def _before(at: Shape, conv: Convolution) -> Shape:
    return tuple(v * step - pad for v, step, pad in zip(at, conv.stride, conv.padding, strict=True))


def least(w: Window, ranges: Ranges, region: Region) -> Tensor:
    """Return the lower bounds that windows on the input give, (b, 2, s)."""
    shape = tuple(region.x0.shape[1:])
    w = _charged(w, ranges.noise[0], shape)
    x0, low, high = (w.of(v, shape) for v in (region.x0, region.low, region.high))
    pairs = (v[:, None].expand_as(w.a).flatten(0, 2) for v in (low, high))
    eps = region.eps[:, None, None].expand(w.a.shape[:3]).flatten()
    moved = region.norm.least(w.a.flatten(0, 2), eps, *pairs).view(w.a.shape[:3])
    return w.total + moved + _sums(w.a, x0)


def supports(network: TracedNetwork, k: int) -> bool:
    """Return whether windows save work for the neurons of node k."""
    return _steps(network, k, (1,) * (len(network.nodes[k].shape) - 1))
