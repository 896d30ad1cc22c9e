"""The windows and patterns of Square: side lengths, L2 and L1 bumps, and tables for rows at any iteration."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks.black_box.random_search import shares, stages
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.types import Keys, Labels

# The L2 and L1 start divides the shorter side of the image into this many tiles.
TILES = 5


@dataclass(frozen=True)
class Sides:
    """The rule for a window's side length in pixels: at least `least`, and odd if `odd` is true."""

    least: int = 1
    odd: bool = False

    def side(self, share: float, h: int, w: int) -> int:
        """Return the side length in pixels of a square window that covers `share` of an h × w image.

        >>> [Sides().side(p, 32, 32) for p in (0.8, 0.4)], Sides(3, odd=True).side(0.4, 32, 32)
        ([29, 20], 21)
        """
        s = max(round(math.sqrt(share * h * w)), self.least)
        return min(s + (self.odd and s % 2 == 0), h, w)


def bump(a: int, b: int, decay: int, p: int) -> Tensor:
    """Return an a × b hill, scaled to p-norm 1: Σ_{r ≥ ρ} (r + 1)^−decay at Chebyshev distance ρ from its middle.

    >>> bump(1, 3, 2, 1).tolist()
    [[0.1428..., 0.7142..., 0.1428...]]
    """
    reach = max(a // 2, b // 2) + 1
    terms = torch.arange(1, reach + 1, dtype=torch.float64, device="cpu") ** -decay
    tail = terms.flip(0).cumsum(0).flip(0)
    down, across = ((torch.arange(n, device="cpu") - n // 2).abs() for n in (a, b))
    away = torch.maximum(down[:, None], across[None])
    hill: Tensor = tail[away]
    return hill.div(torch.linalg.vector_norm(hill, p)) if a * b else hill


def pattern(s: int, decay: int, p: int) -> Tensor:
    """Return an s × s pattern of p-norm 1: a hill in the upper half, a negative hill in the lower half."""
    block = torch.cat([bump(s // 2, s, decay, p), -bump(s - s // 2, s, decay, p)])
    return block.div(torch.linalg.vector_norm(block, p))


@table
def window_table(
    sides: Sides, steps: int, p0: float, h: int, w: int, windows: int, coins: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return three tables by iteration: halvings, the window's side, and the bounds of the random integers to draw.

    These are, for each of `windows` windows, its counts of vertical and horizontal offsets, then 2 for each of `coins`.
    """
    side = [sides.side(share, h, w) for share in shares(steps, p0)]
    bounds = [[h - s + 1, w - s + 1] * windows + [2] * coins for s in side]
    halvings = stages(steps)
    tables = halvings, [side[k] for k in halvings], [bounds[k] for k in halvings]
    return tuple(torch.tensor(v, device=device, dtype=torch.long) for v in tables)


@table
def pattern_table(sides: tuple[int, ...], decay: int, p: int, device: torch.device) -> Tensor:
    """Return each side's pattern and its transpose, zero-padded: shape (sides, 2, S + 2, S + 2) for largest side S."""
    largest = max(sides)
    table = torch.zeros(len(sides), 2, largest + 2, largest + 2, dtype=torch.float32, device="cpu")
    for k, s in enumerate(sides):
        block = pattern(s, decay, p).float()
        table[k, 0, 1 : s + 1, 1 : s + 1], table[k, 1, 1 : s + 1, 1 : s + 1] = block, block.T
    return table.to(device)


@table
def tiling(h: int, w: int, decay: int, p: int, device: torch.device) -> tuple[int, Tensor, Tensor]:
    """Return the number of tiles, each pixel's tile, and images (2, h·w) tiled with the pattern and its transpose."""
    side = max(min(h, w) // TILES, 1)
    (di, i), (dj, j) = _cut(h, side), _cut(w, side)
    tile = i[:, None].clamp(min=0) * (w // side) + j[None].clamp(min=0)
    covered = (i[:, None] >= 0) & (j[None] >= 0)
    block = pattern(side, decay, p).float()
    both = torch.stack([block, block.T])[:, di[:, None], dj[None]] * covered
    return (h // side) * (w // side), tile.reshape(-1).to(device), both.flatten(1).to(device)


def _cut(n: int, side: int) -> tuple[Tensor, Tensor]:
    """Return, per position 0 … n − 1, its offset in its tile and the tile's index (−1: none); tiles are centred."""
    count = n // side
    at = torch.arange(n, device="cpu") - (n - count * side) // 2
    inside = (at >= 0) & (at < count * side)
    return at % side, torch.where(inside, at // side, -1)


def draw(key: Keys, bound: Tensor) -> Tensor:
    """Draw an integer from 0 … bound − 1 for every entry of `bound`, shape (b, k), each with its own key."""
    b, k = bound.shape
    return rng.integers(rng.children(key, k).reshape(-1), bound.reshape(-1)).view(b, k)


def span(start: Labels, side: Labels, n: int) -> Tensor:
    """Return the mask, (b, n), of the positions in start … start + side − 1."""
    at = torch.arange(n, device=start.device) - start[:, None]
    return (at >= 0) & (at < side[:, None])


def stamp(table: Tensor, stage: Labels, turned: Labels, top: Labels, left: Labels, h: int, w: int) -> Tensor:
    """Return, per row, an image (b, h·w) with the pattern of this stage and orientation at (top, left)."""
    wide = table.shape[-1]
    i = (torch.arange(1, h + 1, device=top.device) - top[:, None]).clamp(0, wide - 1)
    j = (torch.arange(1, w + 1, device=top.device) - left[:, None]).clamp(0, wide - 1)
    line = ((2 * stage + turned)[:, None] * wide + i) * wide
    cell = line[:, :, None] + j[:, None]
    return table.view(-1).index_select(0, cell.view(-1)).view(len(top), h * w)
