"""Weather corruptions: snow, frost, fog, and spatter of water or mud."""

import torch
from torch import Tensor

from brinell.data.corruptions.frost import frost_at
from brinell.data.corruptions.image_ops import (
    LEVELS,
    SLACK,
    along,
    coloured,
    gaussian,
    luma,
    nearest,
    small_correlate,
    streaked,
    truncated,
    zoom_matrix,
)
from brinell.ops import rng
from brinell.ops.types import Images, Keys, Layer, Squares

# Fog: the size of the first random displacement, which is divided at each halving of the step.
WIBBLE = 100.0
# Spatter: colours of water and mud; the smallest slope of an edge, the smallest cover of mud, the reach of an edge.
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
EDGE, MUDDY, REACH = 150.0, 0.8, 20
SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
MEAN = ((1.0, 1.0, 1.0),) * 3


def fog(x: Images, key: Keys, amount: float, decay: float) -> Images:
    """Add `amount` times fractal clouds, and scale the sum so that no value exceeds the image's largest value."""
    h, w = x.shape[2:]
    size = 1 << (max(h, w, 2) - 1).bit_length()
    most = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * clouds(key, size, decay)[:, None, :h, :w]) * (most / (most + amount))


def clouds(key: Keys, size: int, decay: float) -> Squares:
    """Return periodic fractal clouds in [0, 1] of size × size pixels; `size` is a power of two.

    Method: the diamond-square algorithm. The center of every square, then of every diamond, is the mean of its four
    corners plus uniform noise within ± a². Then the step is halved and the amplitude a divided by `decay`.
    """
    field = torch.zeros(len(key), size, size, device=key.device)
    step, wibble, level = size, WIBBLE, 0
    while step >= 2:
        half, spread = step // 2, wibble * wibble
        square = [(i, j) for i in (-half, half) for j in (-half, half)]
        diamond = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for turn, (top, left, corners) in enumerate(((half, half, square), (0, half, diamond), (half, 0, diamond))):
            a, b, c, d = (_grid(field, top + i, left + j, step) for i, j in corners)
            noise = 2 * rng.uniform(rng.fold(key, 3 * level + turn), tuple(a.shape[1:])) - 1
            field[:, top::step, left::step] = (a + b + c + d) / 4 + spread * noise
        step, wibble, level = half, wibble / decay, level + 1
    field = field - field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def _grid(field: Tensor, top: int, left: int, step: int) -> Tensor:
    """Return every step-th value in both directions from (top, left); positions wrap around."""
    return field[:, top % step :: step, left % step :: step].roll((-(top // step), -(left // step)), (1, 2))


def frost(x: Images, key: Keys, clear: float, ice: float) -> Images:
    """Return `clear` times the image plus `ice` times a random crop of a picture of ice crystals."""
    return clear * x + ice * frost_at(key, x.shape[1], x.shape[2], x.shape[3])


def snow(
    x: Images, key: Keys, mean: float, spread: float, zoom: float, least: float, radius: int, sigma: float, keep: float
) -> Images:
    """Add streaks of snow and whiten the image.

    Method: normal noise is enlarged by `zoom`, set to zero below `least`, and motion-blurred in a direction within 45
    degrees of the vertical. This snow is added twice, the second time rotated by 180 degrees.
    """
    h, w = x.shape[2:]
    flakes = mean + spread * rng.normal(rng.fold(key, 1), (1, h, w))
    flakes = along(flakes, zoom_matrix(h, zoom), zoom_matrix(w, zoom)).float()
    flakes = truncated(torch.where(flakes < least, 0.0, flakes)) / LEVELS
    angle = 90 * rng.uniform(rng.fold(key, 2), ()) - 135
    flakes = nearest(streaked(flakes, angle, radius, sigma)) / LEVELS
    white = torch.maximum(x, 1.5 * luma(x) + 0.5)
    return keep * x + (1 - keep) * white + flakes + flakes.flip(2, 3)


def spatter(
    x: Images, key: Keys, mean: float, spread: float, sigma: float, least: float, amount: float, mud: int
) -> Images:
    """Add drops of water (or of mud, if `mud` is 1) where smoothed normal noise exceeds `least`."""
    liquid = gaussian(mean + spread * rng.normal(key, (1, *x.shape[2:])), sigma)
    if not mud:
        liquid = torch.where(liquid < least, 0.0, liquid)
        return x + coloured(amount * _shine(liquid), WATER, x.shape[1])
    cover = gaussian((liquid > least).float(), amount)
    cover = torch.where(cover < MUDDY, 0.0, cover)
    return x * (1 - cover) + coloured(cover, MUD, x.shape[1])


def _shine(liquid: Layer) -> Layer:
    """Return the light that drops reflect, in [0, 1]: an embossed relief of the distance to the drops' edges."""
    levels = truncated(liquid)
    depth = _blurred(_distance(_edges(levels)).clamp(max=REACH), SLACK)
    relief = small_correlate(_equalised(depth), EMBOSS).clamp(0, LEVELS)
    light = levels * _blurred(relief, 0.5)
    # Without drops there is no light to scale.
    return light / light.amax((1, 2, 3), keepdim=True).clamp(min=1e-12)


def _blurred(x: Layer, up: float) -> Layer:
    """Return the mean of the 3 × 3 pixels around each pixel, plus `up`, rounded down."""
    return (small_correlate(x, MEAN) / 9 + up).floor()


def _edges(levels: Layer) -> Tensor:
    """Return a mask of edge pixels, the steep local maxima of the slope: Canny's method without hysteresis."""
    dx = small_correlate(levels, SOBEL)
    dy = small_correlate(levels.transpose(2, 3), SOBEL).transpose(2, 3)
    slope = dx.abs() + dy.abs()
    flat, steep = dy.abs() < 0.4142 * dx.abs(), dy.abs() > 2.4142 * dx.abs()
    falling = dx * dy > 0
    highest = torch.zeros_like(flat)
    for chosen, (i, j) in (
        (flat, (0, 1)),
        (steep & ~flat, (1, 0)),
        (~flat & ~steep & falling, (1, 1)),
        (~flat & ~steep & ~falling, (1, -1)),
    ):
        before, after = _shifted(slope, -i, -j), _shifted(slope, i, j)
        highest = highest | (chosen & (slope > before) & (slope >= after))
    return highest & (slope > EDGE)


def _shifted(x: Tensor, i: int, j: int) -> Tensor:
    """Return for each pixel the value i rows below and j columns to the right, 0 beyond the border."""
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    return padded[:, :, 1 + i : 1 + i + x.shape[2], 1 + j : 1 + j + x.shape[3]]


def _distance(edges: Tensor) -> Layer:
    """Return each pixel's Euclidean distance to the nearest edge pixel, exact up to REACH pixels."""
    far = 2.0 * REACH * REACH
    square = torch.where(edges, 0.0, far)
    for axis in (2, 3):
        n, nearest_yet = square.shape[axis], square
        for i in range(1, min(REACH + 1, n)):
            ahead = square.narrow(axis, i, n - i) + i * i
            behind = square.narrow(axis, 0, n - i) + i * i
            beyond = torch.full_like(square.narrow(axis, 0, i), far)
            nearest_yet = nearest_yet.minimum(torch.cat([ahead, beyond], axis)).minimum(
                torch.cat([beyond, behind], axis)
            )
        square = nearest_yet
    return square.sqrt()


def _equalised(levels: Layer) -> Layer:
    flat = levels.flatten(1).long()
    count = torch.zeros(len(flat), LEVELS + 1, dtype=torch.long, device=flat.device)
    count = count.scatter_add(1, flat, torch.ones_like(flat))
    # The lowest level that occurs becomes 0.
    first = count.gather(1, flat.amin(1, keepdim=True))
    rank = (count.cumsum(1) - first).clamp(min=0).double() / (flat.shape[1] - first).clamp(min=1)
    return (rank * LEVELS + 0.5).floor().gather(1, flat).float().view_as(levels)
