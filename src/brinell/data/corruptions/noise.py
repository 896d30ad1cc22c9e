"""Noise: on every value of an image for itself."""

from functools import lru_cache

import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import LEVELS, Images, nearest
from brinell.ops import rng
from brinell.ops.types import Keys


def gaussian_noise(x: Images, key: Keys, scale: float) -> Images:
    """Normal noise of standard deviation `scale`."""
    return x + scale * rng.normal(key, tuple(x.shape[1:]))


def speckle_noise(x: Images, key: Keys, scale: float) -> Images:
    """Normal noise in proportion to the value."""
    return x + scale * (x * rng.normal(key, tuple(x.shape[1:])))


def impulse_noise(x: Images, key: Keys, share: float) -> Images:
    """A share of the values becomes black or white with equal chance."""
    shape = tuple(x.shape[1:])
    struck = rng.uniform(rng.fold(key, 1), shape) < share
    return torch.where(struck, (rng.signs(rng.fold(key, 2), shape) + 1) / 2, x)


def shot_noise(x: Images, key: Keys, photons: float) -> Images:
    """A Poisson number of photons, of which a white value gets `photons` on average.

    Method: the inverse of the distribution function, from a table with a line for each of the 256 levels, so that every
    value takes one keyed number; the image is rounded to these levels first.
    """
    table = _poisson_table(photons).to(x.device)
    level = nearest(x).double().contiguous()
    # The middle of the generator's steps: at 0 itself the inverse would be no photon at all, however bright.
    u = rng.uniform(key, tuple(x.shape[1:])).double() + 2.0**-25
    count = torch.searchsorted(table.flatten(), level + u, right=True) - level.long() * table.shape[1]
    return count.float() / photons


@lru_cache(maxsize=16)
def _poisson_table(photons: float) -> Tensor:
    """Line i holds i + P(N ≤ n), n = 0, 1, …, for the mean i/255 · photons: all lines in one ascending order."""
    most = int(photons + 8 * photons**0.5 + 16)
    mean = torch.arange(LEVELS + 1, dtype=torch.float64)[:, None] * (photons / LEVELS)
    n = torch.arange(most, dtype=torch.float64)
    chance = (torch.xlogy(n, mean) - mean - torch.lgamma(n + 1)).exp().cumsum(1).clamp(max=1)
    chance[:, -1] = 1
    return chance + torch.arange(LEVELS + 1, dtype=torch.float64)[:, None]
