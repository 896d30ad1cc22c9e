"""Lower bounds of distances between all pairs of samples, cheap enough to compute for all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.ops import rng
from brinell.ops.norms import L1, L2, LINF, NORMS
from brinell.ops.rowwise import flat

# Coordinates that are summed (L1) or of which one is looked at (Linf): for all pairs, then for those that are left.
GROUPS = (16, 4)
STRIDES = (20, 5)
# Directions that carry most of the squared distances between natural images, and samples that show which these are.
DIRECTIONS, SHOWN = 192, 2000
# Whole numbers of 16 bits: a feature has at most so many levels, and rounding errs by one at most.
TOP, LEVELS = 32000, 255

Pairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Bounds:
    """`rows` bounds the distances of some samples to all, `levels` ever more closely those of pairs, `exact` is exact.

    Bounds may exceed the distance by float32 rounding only.
    """

    rows: Callable[[Tensor], Tensor]
    levels: tuple[Pairs, ...]
    exact: Pairs


def distance_bounds(norm: str, x: Tensor, shape: tuple[int, ...]) -> Bounds:
    """The bounds of a norm for flat samples x that had this shape."""
    make = {LINF.name: _linf, L2.name: _l2, L1.name: _l1}[norm]
    size = NORMS[norm].size
    return make(x, shape, lambda i, j: size(x[i] - x[j]))


def _l1(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> Bounds:
    """|Σ d| over a group is at most Σ |d|: sums over squares of the image, coarse to fine."""
    near = x[:, _by_squares(shape).to(x.device)]
    sums = [_group_sums(near, g) for g in GROUPS if g < x.shape[1]] or [near]

    def finer(s: Tensor) -> Pairs:
        return lambda i, j: (s[i] - s[j]).abs().sum(1)

    return Bounds(_counted(sums[0], sum_up=True), tuple(finer(s) for s in sums[1:]), exact)


def _linf(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> Bounds:
    """The largest difference among some of the coordinates."""
    some = [x[:, ::stride].contiguous() for stride in STRIDES if stride < x.shape[1]] or [x]

    def finer(s: Tensor) -> Pairs:
        return lambda i, j: (s[i] - s[j]).abs().amax(1)

    return Bounds(_counted(some[0], sum_up=False), tuple(finer(s) for s in some[1:]), exact)


def _l2(x: Tensor, shape: tuple[int, ...], exact: Pairs) -> Bounds:
    """Distances along a few directions, by a matrix product, and the difference of what lies across them."""
    centred = x - x.mean(0)
    basis = _directions(centred)
    along = centred @ basis
    square = along.square().sum(1)
    across = (centred.square().sum(1) - square).clamp(min=0).sqrt()
    # What rounding can add to a squared distance: the products have so many terms of at most this size.
    slack = 4 * x.shape[1] * torch.finfo(x.dtype).eps * float(centred.square().sum(1).max())

    def rows(i: Tensor) -> Tensor:
        d = square[i][:, None] + square[None] - 2 * along[i] @ along.T + (across[i][:, None] - across[None]).square()
        return (d - slack).clamp_(min=0).sqrt_()

    return Bounds(rows, (), exact)


def _directions(centred: Tensor) -> Tensor:
    """An orthonormal basis of about the leading directions, (n, k): subspace iteration, twice, on some samples."""
    some = centred[:: max(len(centred) // SHOWN, 1)]
    k = min(DIRECTIONS, centred.shape[1], len(some))
    basis = rng.normal(rng.keys(0, torch.arange(centred.shape[1], device=centred.device)), (k,))
    for _ in range(2):
        basis = torch.linalg.qr(some.T @ (some @ basis)).Q
    return basis


def _counted(features: Tensor, sum_up: bool) -> Callable[[Tensor], Tensor]:
    """L1 or Linf distances of features in whole numbers: small and quick, wrong by at most one level per feature."""
    count = features.shape[1]
    top = max(min(LEVELS * 8, TOP // count), 1) if sum_up else LEVELS
    least, most = float(features.min()), float(features.max())
    step = max(most - least, 1e-12) / top
    level = ((features - least) / step).round().to(torch.int16)
    columns = level.T.contiguous()
    # Values that are levels already (8-bit images) lose nothing.
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
    """An order of coordinates in which those of a square of an image follow one another, squares within squares."""
    count = int(torch.Size(shape).numel())
    index = torch.arange(count)
    if len(shape) != 3:
        return index
    _, height, width = shape
    channel, row, column = index // (height * width), index // width % height, index % width
    rank = channel
    for bit in range(max(height, width).bit_length() - 1, -1, -1):
        rank = 4 * rank + 2 * (row >> bit & 1) + (column >> bit & 1)
    order: Tensor = flat(rank[None])[0].argsort(stable=True)
    return order
