"""Noise corruptions, independent for every value of an image."""

from functools import lru_cache

import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import LEVELS, nearest
from brinell.ops import rng
from brinell.ops.types import Images, Keys


def gaussian_noise(x: Images, key: Keys, scale: float) -> Images:
    """Add normal noise of standard deviation `scale`."""
    return x + scale * rng.normal(key, tuple(x.shape[1:]))


def speckle_noise(x: Images, key: Keys, scale: float) -> Images:
    """Add normal noise whose standard deviation is `scale` times the value of the pixel."""
    return x + scale * (x * rng.normal(key, tuple(x.shape[1:])))


def impulse_noise(x: Images, key: Keys, share: float) -> Images:
    """Set every value with probability `share` to 0 or to 1; the two are equally likely."""
    shape = tuple(x.shape[1:])
    replaced = rng.uniform(rng.fold(key, 1), shape) < share
    return torch.where(replaced, (rng.signs(rng.fold(key, 2), shape) + 1) / 2, x)


def shot_noise(x: Images, key: Keys, photons: float) -> Images:
    """Replace each value by a Poisson number of photons; a white value receives `photons` on average.

    Method: the image is rounded to 256 levels. A table inverts the distribution function of each level, so every value
    needs one keyed random number.
    """
    table = _poisson_table(photons).to(x.device)
    level = nearest(x).double().contiguous()
    # Use the centre of the generator's steps: at 0 the inverse would give no photon for any brightness.
    u = rng.uniform(key, tuple(x.shape[1:])).double() + 2.0**-25
    count = torch.searchsorted(table.flatten(), level + u, right=True) - level.long() * table.shape[1]
    return count.float() / photons


@lru_cache(maxsize=16)
def _poisson_table(photons: float) -> Tensor:
    """Return the Poisson distribution functions of all pixel values i as rows: P(N ≤ n) for n = 0, 1, …, plus i.

    N has the mean i/255 · photons. With i added, the flat table is ascending and one binary search serves all rows.
    """
    most = int(photons + 8 * photons**0.5 + 16)
    mean = torch.arange(LEVELS + 1, dtype=torch.float64)[:, None] * (photons / LEVELS)
    n = torch.arange(most, dtype=torch.float64)
    chance = (torch.xlogy(n, mean) - mean - torch.lgamma(n + 1)).exp().cumsum(1).clamp(max=1)
    chance[:, -1] = 1
    return chance + torch.arange(LEVELS + 1, dtype=torch.float64)[:, None]
