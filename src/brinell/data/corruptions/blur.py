"""Blur corruptions: defocus, frosted glass, motion, zoom and Gaussian."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import (
    LEVELS,
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
from brinell.ops.types import Images, Keys, Pixels

# Discs up to this radius use a grid of 17 × 17 and a 3 × 3 smoothing filter; larger discs use 5 × 5.
GRID = 8


def gaussian_blur(x: Images, key: Keys, sigma: float) -> Images:
    """Apply a Gaussian filter of standard deviation `sigma` pixels."""
    return gaussian(x, sigma)


def defocus_blur(x: Images, key: Keys, radius: float, smooth: float) -> Images:
    """Apply a disc filter of `radius` pixels, its edge smoothed by a Gaussian of standard deviation `smooth`."""
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
    # Cut off a rim of negligible values, which would only enlarge the Fourier transforms.
    rim = 0
    while rim < r and float(disc[rim].abs().max()) < 1e-12:
        rim += 1
    return disc[rim : 2 * r + 1 - rim, rim : 2 * r + 1 - rim]


def glass_blur(x: Images, key: Keys, sigma: float, reach: int, rounds: int) -> Images:
    """Blur, replace every pixel by a random neighbour, and blur again.

    Method: the published loop runs from the last pixel to the first. Each pixel takes the current value of a neighbour
    up to `reach` rows and columns before it or `reach` − 1 behind it. A neighbour behind it has already changed, so
    pointer doubling follows the chain of pixels to a value from the start of the round, with the same result.
    """
    x = truncated(gaussian(x, sigma)) / LEVELS
    h, w = x.shape[2:]
    for i in range(rounds):
        source = _sources(rng.fold(key, i), h, w, reach)
        x = picked(x, source // w, source % w)
    return gaussian(x, sigma)


def _sources(key: Keys, h: int, w: int, reach: int) -> Pixels:
    """Return for each pixel the position (row · w + column) of the pixel whose value it has after one round."""
    inside = torch.zeros(h, w, dtype=torch.bool, device=key.device)
    inside[reach + 1 : h - reach + 1, reach + 1 : w - reach + 1] = True
    jump = rng.integers(key, 2 * reach, (2, h, w)) - reach
    position = torch.arange(h * w, device=key.device)
    to = position + torch.where(inside, jump[:, 0] * w + jump[:, 1], 0).flatten(1)
    # Entries below n point to a changed pixel; entries from n on point to the initial value of pixel − n.
    n = h * w
    follow = (to > position) & inside.flatten()[to]
    at = torch.where(follow, to, to + n)
    if reach > 1:
        for _ in range(math.ceil(math.log2(n))):
            at = torch.where(at < n, at.gather(1, at.clamp(max=n - 1)), at)
    return (at - n).view(-1, h, w)


def motion_blur(x: Images, key: Keys, radius: int, sigma: float) -> Images:
    """Apply motion blur over 2·radius + 1 pixels in a random direction within 45 degrees of the horizontal."""
    return streaked(x, 90 * rng.uniform(key, ()) - 45, radius, sigma)


def zoom_blur(x: Images, key: Keys, most: float, step: float) -> Images:
    """Average the image and enlargements of its center by the factors 1, 1 + step, … below `most`."""
    h, w = x.shape[2:]
    # numpy.arange as published: its rounding determines whether `most` is included and how sizes are rounded.
    factors = np.arange(1, most, step).tolist()
    total = x.double()
    for factor in factors:
        total = total + along(x, zoom_matrix(h, factor), zoom_matrix(w, factor))
    return (total / (len(factors) + 1)).float()
