"""Blur: out of focus, through frosted glass, in motion, zooming, and Gaussian."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from brinell.data.corruptions.image_ops import (
    LEVELS,
    Images,
    along,
    bell,
    correlate,
    gaussian,
    mirror,
    picked,
    streaked,
    truncated,
    zoom_matrix,
)
from brinell.ops import rng
from brinell.ops.types import Keys

# Discs of at most this radius are drawn on a grid of 17 × 17 and smoothed with 3 × 3 pixels; larger ones with 5 × 5.
GRID = 8


def gaussian_blur(x: Images, key: Keys, sigma: float) -> Images:
    """A Gaussian filter."""
    return gaussian(x, sigma)


def defocus_blur(x: Images, key: Keys, radius: float, smooth: float) -> Images:
    """A disc whose edge is smoothed by a Gaussian."""
    return correlate(x, _disc(radius, smooth)).float()


@lru_cache(maxsize=16)
def _disc(radius: float, smooth: float) -> Tensor:
    r, taps = (GRID, 1) if radius <= GRID else (int(radius), 2)
    i = torch.arange(-r, r + 1, dtype=torch.float64)
    disc = (i[:, None] ** 2 + i**2 <= radius**2).double()
    disc, w = disc / disc.sum(), bell(taps, smooth)
    places = mirror(torch.arange(-taps, 2 * r + 1 + taps), 2 * r + 1)
    for _ in range(2):
        disc = (disc[places].unfold(0, len(w), 1) @ w).T
    # What is next to nothing at the rim would make larger Fourier transforms for nothing.
    rim = 0
    while rim < r and float(disc[rim].abs().max()) < 1e-12:
        rim += 1
    return disc[rim : 2 * r + 1 - rim, rim : 2 * r + 1 - rim]


def glass_blur(x: Images, key: Keys, sigma: float, reach: int, rounds: int) -> Images:
    """Gaussian blur, then every pixel takes the value of a random neighbour, then blur again.

    Method: from the last pixel to the first, each takes what its neighbour, up to `reach` before or `reach` − 1 behind
    it, holds at that moment. A pixel behind has already taken its own, so places are followed from pixel to pixel, in
    doubling steps, until they lead to a value of the round's beginning: the outcome of the loop, without the loop.
    """
    x = truncated(gaussian(x, sigma)) / LEVELS
    h, w = x.shape[2:]
    for i in range(rounds):
        source = _sources(rng.fold(key, i), h, w, reach)
        x = picked(x, source // w, source % w)
    return gaussian(x, sigma)


def _sources(key: Keys, h: int, w: int, reach: int) -> Int[Tensor, "b h w"]:
    """Where each pixel's value was when the round began, as a number row · w + column."""
    inside = torch.zeros(h, w, dtype=torch.bool, device=key.device)
    inside[reach + 1 : h - reach + 1, reach + 1 : w - reach + 1] = True
    jump = rng.integers(key, 2 * reach, (2, h, w)) - reach
    own = torch.arange(h * w, device=key.device)
    to = own + torch.where(inside, jump[:, 0] * w + jump[:, 1], 0).flatten(1)
    # Below n: the value this pixel has taken; n and above: the value pixel − n had at the beginning.
    n = h * w
    follow = (to > own) & inside.flatten()[to]
    at = torch.where(follow, to, to + n)
    if reach > 1:
        for _ in range(math.ceil(math.log2(n))):
            at = torch.where(at < n, at.gather(1, at.clamp(max=n - 1)), at)
    return (at - n).view(-1, h, w)


def motion_blur(x: Images, key: Keys, radius: int, sigma: float) -> Images:
    """A trail in a direction within 45 degrees of the horizontal."""
    return streaked(x, 90 * rng.uniform(key, ()) - 45, radius, sigma)


def zoom_blur(x: Images, key: Keys, most: float, step: float) -> Images:
    """The mean of the image and of enlargements of its middle by 1, 1 + step, … up to `most`."""
    h, w = x.shape[2:]
    # With numpy's own rounding, as published: it decides whether `most` is one of them and how sizes are rounded.
    factors = np.arange(1, most, step).tolist()
    total = x.double()
    for factor in factors:
        total = total + along(x, zoom_matrix(h, factor), zoom_matrix(w, factor))
    return (total / (len(factors) + 1)).float()
