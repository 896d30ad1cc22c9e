"""Cheap lower bounds on the distances between all pairs of samples."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.ops import rng
from brinell.ops.norms import L1, L2, LINF, NORMS
from brinell.ops.rowwise import flat

# Group sizes for sums (L1) and strides for single coordinates (Linf): for all pairs, then for the remaining ones.
GROUPS = (16, 4)
STRIDES = (20, 5)
# Principal directions, which carry most of the squared distance between natural images, and samples to find them.
DIRECTIONS, SHOWN = 192, 2000
# Features are quantised to 16-bit integers: the largest sum, and the number of levels.
TOP, LEVELS = 32000, 255

Pairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DistanceBounds:
    """Lower bounds on the distances between samples: `rows` for all pairs, the tighter `levels` for some pairs.

    `rows` bounds the distances of given samples to all samples. `levels` are ever tighter functions of two lists of
    samples, which bound the distance of each pair; `exact` returns the distances themselves. A bound may exceed the
    distance by float32 rounding at most.
    """

    rows: Callable[[Tensor], Tensor]
    levels: tuple[Pairs, ...]
    exact: Pairs


def distance_bounds(norm: str, x: Tensor, shape: tuple[int, ...]) -> DistanceBounds:
    """Return lower bounds on the distances in a norm between the rows of x, which are samples of `shape`, flattened."""
    make = {LINF.name: _linf, L2.name: _l2, L1.name: _l1}[norm]
    return make(x, shape, _pairs(NORMS[norm].size, x))


def _pairs(size: Callable[[Tensor], Tensor], x: Tensor) -> Pairs:
    return lambda i, j: size(x[i] - x[j])


def _l1(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> DistanceBounds:
    """Bound the L1 norm of a difference d from below by Σ |Σ d| over groups of pixels; levels use smaller groups."""
    near = x[:, _by_squares(shape).to(x.device)]
    sums = [_group_sums(near, g) for g in GROUPS if g < x.shape[1]] or [near]
    return DistanceBounds(
        _counted(sums[0], sum_up=True), tuple(_pairs(lambda d: d.abs().sum(1), s) for s in sums[1:]), exact
    )


def _linf(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> DistanceBounds:
    """Bound Linf distances from below by the largest difference among some of the coordinates."""
    some = [x[:, ::stride].contiguous() for stride in STRIDES if stride < x.shape[1]] or [x]
    return DistanceBounds(
        _counted(some[0], sum_up=False), tuple(_pairs(lambda d: d.abs().amax(1), s) for s in some[1:]), exact
    )


def _l2(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> DistanceBounds:
    """Bound L2 distances from below by the distance within a subspace and the difference of the norms outside it."""
    centred = x - x.mean(0)
    basis = _directions(centred)
    along = centred @ basis
    square = along.square().sum(1)
    across = (centred.square().sum(1) - square).clamp(min=0).sqrt()
    # The largest rounding error of a squared distance.
    slack = 4 * x.shape[1] * torch.finfo(x.dtype).eps * float(centred.square().sum(1).max())

    def rows(i: Tensor) -> Tensor:
        d = square[i][:, None] + square[None] - 2 * along[i] @ along.T + (across[i][:, None] - across[None]).square()
        return (d - slack).clamp_(min=0).sqrt_()

    return DistanceBounds(rows, (), exact)


def _directions(centred: Tensor) -> Tensor:
    """Return approximate leading principal directions of the data (orthonormal columns), by two subspace iterations."""
    some = centred[:: max(len(centred) // SHOWN, 1)]
    k = min(DIRECTIONS, centred.shape[1], len(some))
    basis = rng.normal(rng.keys(0, torch.arange(centred.shape[1], device=centred.device)), (k,))
    for _ in range(2):
        basis = torch.linalg.qr(some.T @ (some @ basis)).Q
    return basis


def _counted(features: Tensor, sum_up: bool) -> Callable[[Tensor], Tensor]:
    """Return a fast `rows`: L1 or Linf distances of quantised features, minus the largest quantisation error."""
    count = features.shape[1]
    top = max(min(LEVELS * 8, TOP // count), 1) if sum_up else LEVELS
    least, most = float(features.min()), float(features.max())
    step = max(most - least, 1e-12) / top
    level = ((features - least) / step).round().to(torch.int16)
    columns = level.T.contiguous()
    # Values that are already quantised (8-bit images) lose nothing.
    off = float((level * step + least - features).abs().max())
    slack = 2 * off * (count if sum_up else 1) + 1e-6 * step

    def rows(i: Tensor) -> Tensor:
        total = torch.zeros(len(i), len(level), dtype=torch.int16, device=level.device)
        here = level[i]
        difference = torch.empty_like(total)
        for f in range(count):
            torch.sub(here[:, f, None], columns[f], out=difference)
            difference.abs_()
            total = total.add_(difference) if sum_up else torch.maximum(total, difference, out=total)
        return (total * step - slack).clamp_(min=0)

    return rows


def _group_sums(x: Tensor, group: int) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % group))
    return padded.view(len(x), -1, group).sum(2)


def _by_squares(shape: tuple[int, ...]) -> Tensor:
    """Return the coordinates of an image in Z-order: the pixels of each square are consecutive, at every scale."""
    count = int(torch.Size(shape).numel())
    index = torch.arange(count, device="cpu")
    if len(shape) != 3:
        return index
    _, height, width = shape
    channel, row, column = index // (height * width), index // width % height, index % width
    rank = channel
    for bit in range(max(height, width).bit_length() - 1, -1, -1):
        rank = 4 * rank + 2 * (row >> bit & 1) + (column >> bit & 1)
    order: Tensor = flat(rank[None])[0].argsort(stable=True)
    return order
