"""Drawn pictures of ice crystals for the frost corruption: feathers of needles over a thin, uneven film."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import along, gaussian_matrix, luma, symmetric
from brinell.ops import rng
from brinell.ops.types import Images, Keys, Places, Squares

# As many pictures as the published corruption has, large enough for many different crops.
PICTURES, SIZE = 5, 512
# Small images use the pictures at one fifth of their size, as published.
SMALL, FIFTH = 64, 5
# Per picture: number of feathers, needles on each side of a stem, angle between stem and needle (ice has six-fold
# symmetry), largest length of a stem and of a needle in pixels, and points per pixel along a needle.
FEATHERS, NEEDLES, ANGLE, STEM, NEEDLE, DENSITY = 110, 26, math.pi / 3, 190.0, 60.0, 1.5
# Ice is slightly blue.
TINT = (0.88, 0.97, 1.0)
SEED = rng.digest("frost")


def frost_at(key: Keys, channels: int, h: int, w: int) -> Images:
    """Return for every key a random h × w crop of a random ice picture; pictures are mirrored beyond their border."""
    pictures = _pictures(min(h, w) <= SMALL).to(key.device)
    n = pictures.shape[-1]
    which = rng.integers(rng.fold(key, 1), PICTURES)
    rows, columns = (_crop(rng.fold(key, 2 + i), m, n) for i, m in enumerate((h, w)))
    grey = pictures[which[:, None, None], rows[:, :, None], columns[:, None]][:, None]
    ice = grey * grey.new_tensor(TINT)[:, None, None]
    return ice if channels == 3 else luma(ice)


def _crop(key: Keys, m: int, n: int) -> Places:
    """Return m consecutive pixel positions out of n, from a random start for every key."""
    start = rng.integers(key, max(n - m, 1))
    return symmetric(start[:, None] + torch.arange(m, device=key.device), n)


@lru_cache(maxsize=2)
def _pictures(small: bool) -> Squares:
    """Return the ice pictures in [0, 1], shrunk to a fifth if `small`; the CPU draws them for all devices."""
    if small:
        n = SIZE // FIFTH
        whole = _pictures(False)[:, : n * FIFTH, : n * FIFTH].double()
        return whole.unflatten(2, (n, FIFTH)).unflatten(1, (n, FIFTH)).mean((2, 4)).float()
    return torch.cat([_picture(key) for key in rng.keys(SEED, torch.arange(PICTURES)).split(1)])


def _picture(key: Keys) -> Squares:
    needles = _smooth(_drawn(key), 0.8)
    film = _texture(rng.fold(key, 8), 40.0) + 0.8 * _texture(rng.fold(key, 9), 9.0)
    cover = torch.sigmoid(2.5 * film)
    grain = 0.08 * _texture(rng.fold(key, 10), 1.5)
    return (0.08 + (0.62 + grain) * cover + 0.8 * needles).clamp(0, 1).float()


def _texture(key: Keys, sigma: float) -> Squares:
    noise = _smooth(rng.normal(key, (SIZE, SIZE)), sigma)
    return noise / noise.std()


def _smooth(x: Tensor, sigma: float) -> Tensor:
    matrix = gaussian_matrix(SIZE, sigma, 4.0, symmetric)
    return along(x[:, None], matrix, matrix)[:, 0]


def _drawn(key: Keys) -> Squares:
    """Draw stems with needles on both sides as bright points on black; a pixel keeps its brightest point."""
    u = rng.uniform(rng.fold(key, 1), (FEATHERS, 5))[0].double()
    root, turn, length = u[:, :2] * SIZE * 1.1 - 0.05 * SIZE, 2 * math.pi * u[:, 2], STEM * (0.3 + 0.7 * u[:, 3])
    bright = 0.45 + 0.55 * u[:, 4]
    # Needles start along the stem, on alternating sides, and become shorter towards its tip.
    v = rng.uniform(rng.fold(key, 2), (FEATHERS, 2 * NEEDLES, 2))[0].double()
    along_stem = (torch.arange(2 * NEEDLES, dtype=torch.float64) // 2 + v[:, :, 0]) / NEEDLES
    side = torch.where(torch.arange(2 * NEEDLES) % 2 == 0, ANGLE, -ANGLE)
    way = torch.stack([turn.cos(), turn.sin()], 1)
    starts = root[:, None] + (along_stem * length[:, None])[:, :, None] * way[:, None]
    turns = turn[:, None] + side + 0.15 * (v[:, :, 1] - 0.5)
    lengths = NEEDLE * (1 - along_stem) * (0.35 + 0.65 * v[:, :, 1]) * (length / STEM)[:, None]
    starts = torch.cat([root[:, None], starts], 1).flatten(0, 1)
    turns, lengths = torch.cat([turn[:, None], turns], 1).flatten(), torch.cat([length[:, None], lengths], 1).flatten()
    brights = (bright[:, None] * torch.cat([torch.ones(1), torch.full((2 * NEEDLES,), 0.8)])).flatten()
    return _plotted(starts, turns, lengths, brights)


def _plotted(starts: Tensor, turns: Tensor, lengths: Tensor, brights: Tensor) -> Squares:
    """Return a picture of straight lines that fade to half of their brightness towards the end."""
    t = torch.linspace(0, 1, int(STEM * DENSITY), dtype=torch.float64)
    ways = torch.stack([turns.cos(), turns.sin()], 1)
    points = (starts[:, None] + (lengths[:, None] * t)[:, :, None] * ways[:, None]).round().long()
    inside = ((points >= 0) & (points < SIZE)).all(2)
    place = (points[:, :, 0] * SIZE + points[:, :, 1])[inside]
    light = (brights[:, None] * (1 - 0.5 * t))[inside]
    canvas = torch.zeros(SIZE * SIZE, dtype=torch.float64).scatter_reduce_(0, place, light, "amax")
    return canvas.float().view(1, SIZE, SIZE)
