"""Digital corruptions: brightness, saturation, contrast, elastic transform and pixelation. JPEG is in `jpeg`."""

from functools import lru_cache

import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import (
    LEVELS,
    along,
    gaussian_matrix,
    luma,
    mirror,
    nearest,
    sampled,
    symmetric,
)
from brinell.ops import rng
from brinell.ops.types import Images, Keys

# Elastic transform: the cut-off of the smoothing filter in standard deviations, and the distance of the three points
# of the affine map from the center, as a fraction (one third) of the shorter side.
TRUNCATE, THIRD = 3.0, 3


def brightness(x: Images, key: Keys, more: float) -> Images:
    """Increase V in HSV by `more`, up to 1: the channels of a pixel grow in proportion, the largest by `more`."""
    value = x.amax(1, keepdim=True)
    bright = (value + more).clamp(max=1)
    # A black pixel has no hue, so it becomes grey.
    return torch.where(value > 0, x * (bright / value.clamp(min=1e-12)), bright)


def saturate(x: Images, key: Keys, factor: float, more: float) -> Images:
    """Change the saturation S in HSV to S · factor + more, within [0, 1]; a grey pixel counts as red.

    An image with one channel is treated as three equal channels, and the brightness of the result is returned.
    """
    if x.shape[1] == 1:
        return luma(saturate(x.expand(-1, 3, -1, -1), key, factor, more))
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    grey = value == least
    before = torch.where(grey, 1.0, (value - least) / value.clamp(min=1e-12))
    after = (torch.where(grey, 0.0, before) * factor + more).clamp(0, 1)
    # The distance of each channel to the value at full saturation; grey pixels use that of red.
    red = x.new_tensor((0.0, 1.0, 1.0))[:, None, None]
    below = torch.where(grey, red * value, (value - x) / before)
    return value - below * after


def contrast(x: Images, key: Keys, factor: float) -> Images:
    """Multiply the difference between every value and the mean of its channel by `factor`."""
    mean = x.double().mean((2, 3), keepdim=True).float()
    return (x - mean) * factor + mean


def pixelate(x: Images, key: Keys, share: float) -> Images:
    """Shrink height and width to the fraction `share` with a box filter, and enlarge again, in 8-bit levels."""
    h, w = x.shape[2:]
    small = max(int(h * share), 1), max(int(w * share), 1)
    levels = nearest(x).double()
    for (rows, columns), (to_rows, to_columns) in (((h, w), small), (small, (h, w))):
        levels = (along(levels, _eye(rows), box_matrix(columns, to_columns)) + 0.5).floor()
        levels = (along(levels, box_matrix(rows, to_rows), _eye(to_columns)) + 0.5).floor()
    return (levels / LEVELS).float()


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


@lru_cache(maxsize=64)
def box_matrix(before: int, after: int) -> Tensor:
    """Return a float64 matrix (after, before): each new pixel is the mean of the old pixels with centres in its box."""
    scale = before / after
    centre = (torch.arange(after, dtype=torch.float64)[:, None] + 0.5) * scale
    # A box is at least one pixel wide, so an enlargement repeats pixels.
    offset = (torch.arange(before, dtype=torch.float64) + 0.5 - centre) / max(scale, 1.0)
    inside = ((offset > -0.5) & (offset <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)


def elastic_transform(x: Images, key: Keys, alpha: float, sigma: float, affine: float) -> Images:
    """Apply a random affine map, then displacements by smooth noise; all lengths are fractions of the shorter side.

    Method: three points around the center move by up to `affine` each. The displacements are uniform noise in [−1, 1],
    smoothed by a Gaussian of width `sigma` and multiplied by `alpha`. Interpolation is linear, borders are mirrored.
    """
    h, w = x.shape[2:]
    side = min(h, w)
    x = sampled(x, *_affine_map(rng.fold(key, 1), h, w, affine * side), border=mirror)
    if alpha == 0:
        return x
    noise = 2 * rng.uniform(rng.fold(key, 2), (2, h, w)) - 1
    smooth = (gaussian_matrix(n, sigma * side, TRUNCATE, symmetric) for n in (h, w))
    shift = (along(noise, *smooth) * (alpha * side)).float()
    rows, columns = (torch.arange(n, dtype=torch.float32, device=x.device) for n in (h, w))
    return sampled(x, rows[:, None] + shift[:, 0], columns + shift[:, 1], border=symmetric)


def _affine_map(key: Keys, h: int, w: int, most: float) -> tuple[Tensor, Tensor]:
    """Return each pixel's source row and column under a random affine map that moves three points by up to `most`."""
    reach = min(h, w) // THIRD
    # Points as (column, row), in the image (before) and in the result (after).
    before = [(w // 2 + i * reach, h // 2 + j * reach) for i, j in ((1, 1), (1, -1), (-1, -1))]
    moves = (2 * rng.uniform(key, (3, 2)).double() - 1) * most
    after = torch.tensor(before, dtype=torch.float64, device=key.device) + moves
    first, second = (after[:, i] - after[:, 0] for i in (1, 2))
    (a, b), (c, d) = ([v[:, None, None] for v in side.unbind(1)] for side in (first, second))
    columns = torch.arange(w, dtype=torch.float64, device=key.device) - after[:, 0, 0, None, None]
    rows = torch.arange(h, dtype=torch.float64, device=key.device)[:, None] - after[:, 0, 1, None, None]
    # Coordinates along two sides of the triangle, by Cramer's rule.
    s, t = (columns * d - rows * c) / (a * d - b * c), (rows * a - columns * b) / (a * d - b * c)
    column, row = (before[0][i] + s * (before[1][i] - before[0][i]) + t * (before[2][i] - before[0][i]) for i in (0, 1))
    return row.float(), column.float()
