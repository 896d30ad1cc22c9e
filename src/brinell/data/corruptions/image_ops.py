"""Image operations that the corruptions share: borders, 8-bit levels, filters as matrices, resampling.

To the last bit, a corrupted image must not depend on the other images. A library may choose the order of some
sums (matrix products, Fourier transforms). These sums use float64, and rounding the result to float32 removes the
differences. All other operations are single multiplications and additions, which every device rounds in the same way.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from brinell.ops.types import Field, Images, Layer, Pixels, Scalars

Border = Callable[[Tensor, int], Tensor]

LEVELS = 255
# Tolerance in levels, so that a rounding error does not move an integer level to the one below.
SLACK = 2.0**-10
# ITU-R BT.601: perceived brightness of red, green and blue.
LUMA = (0.299, 0.587, 0.114)


def edge(i: Tensor, n: int) -> Tensor:
    """Return the index in 0 … n − 1 of the pixel at position i; the outermost pixels repeat: a a | a b c | c c."""
    return i.clamp(0, n - 1)


def mirror(i: Tensor, n: int) -> Tensor:
    """Return the index in 0 … n − 1 of the pixel at position i; mirrored at the outermost pixel: c b | a b c | b a."""
    period = max(2 * (n - 1), 1)
    i = i.remainder(period)
    return torch.minimum(i, period - i).clamp(max=n - 1)


def symmetric(i: Tensor, n: int) -> Tensor:
    """Return the index in 0 … n − 1 of the pixel at position i; the image is mirrored at its edge: b a | a b c | c b.

    >>> symmetric(torch.arange(-2, 5), 3).tolist(), mirror(torch.arange(-2, 5), 3).tolist()
    ([1, 0, 0, 1, 2, 2, 1], [2, 1, 0, 1, 2, 1, 0])
    """
    i = i.remainder(2 * n)
    return torch.minimum(i, 2 * n - 1 - i)


def truncated(x: Tensor) -> Tensor:
    """Convert values in [0, 1] to levels 0 … 255, rounded down as in the published data sets."""
    return (x.clamp(0, 1) * LEVELS + SLACK).floor()


def nearest(x: Tensor) -> Tensor:
    """Convert values in [0, 1] to the nearest levels 0 … 255, which is exact for 8-bit images."""
    return (x.clamp(0, 1) * LEVELS + 0.5).floor()


def luma(x: Images) -> Layer:
    """Convert one or three channels to one grey channel."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.unbind(1)
    return (LUMA[0] * r + LUMA[1] * g + LUMA[2] * b)[:, None]


def coloured(layer: Layer, colour: tuple[float, float, float], channels: int) -> Images:
    """Return the grey layer times an RGB colour or, for one channel, times the brightness of the colour."""
    if channels == 1:
        return layer * sum(share * c for share, c in zip(LUMA, colour, strict=True))
    return layer * layer.new_tensor(colour)[:, None, None]


def bell(radius: int, sigma: float) -> Tensor:
    """Return the weights of a Gaussian filter at −radius … radius, with sum 1, in float64."""
    i = torch.arange(-radius, radius + 1, dtype=torch.float64)
    w = torch.exp(-0.5 * (i / sigma) ** 2)
    return w / w.sum()


@lru_cache(maxsize=64)
def gaussian_matrix(n: int, sigma: float, truncate: float = 4.0, border: Border = edge) -> Tensor:
    """Return a Gaussian filter on n pixels, cut off at `truncate` · sigma pixels, as a float64 matrix (n, n)."""
    radius = int(truncate * sigma + 0.5)
    places = border(torch.arange(n)[:, None] + torch.arange(-radius, radius + 1), n)
    weights = bell(radius, sigma).expand(n, -1)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, places, weights)


@lru_cache(maxsize=64)
def zoom_matrix(n: int, factor: float) -> Tensor:
    """Return the float64 matrix (n, n) that enlarges the center of n pixels by a factor, interpolated linearly."""
    cut = math.ceil(n / factor)
    size = round(cut * factor)
    at = (torch.arange(n, dtype=torch.float64) + (size - n) // 2) * ((cut - 1) / (size - 1))
    low = at.floor().clamp(max=cut - 2)
    places = (torch.stack([low, low + 1], 1) + (n - cut) // 2).long()
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, places, torch.stack([1 - at + low, at - low], 1))


def along(x: Images, vertical: Tensor, horizontal: Tensor) -> Images:
    """Apply the matrix `vertical` along the columns and `horizontal` along the rows of every image, in float64."""
    x = x.double() @ horizontal.to(x.device).T
    return (x.transpose(2, 3) @ vertical.to(x.device).T).transpose(2, 3)


def gaussian(x: Images, sigma: float) -> Images:
    """Apply a Gaussian blur, cut off at 4 standard deviations, with repeated borders."""
    h, w = x.shape[2:]
    return along(x, gaussian_matrix(h, sigma), gaussian_matrix(w, sigma)).float()


def correlate(x: Images, kernel: Tensor) -> Images:
    """Correlate images with an odd square kernel and mirrored borders, in float64.

    Method: Fourier transforms. Cost: five transforms, whatever the size of the kernel.
    """
    (h, w), r = x.shape[2:], kernel.shape[0] // 2
    rows, columns = (mirror(torch.arange(-r, n + r, device=x.device), n) for n in (h, w))
    padded = x.double()[:, :, rows][:, :, :, columns]
    size = (h + 2 * r, w + 2 * r)
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(kernel.double().to(x.device), s=size).conj()
    return torch.fft.irfft2(spectrum, s=size)[:, :, :h, :w]


def small_correlate(x: Images, kernel: tuple[tuple[float, ...], ...]) -> Images:
    """Correlate images with a small kernel in the precision of `x`; exact if all numbers are small integers."""
    (h, w), r = x.shape[2:], len(kernel) // 2
    rows, columns = (mirror(torch.arange(-r, n + r, device=x.device), n) for n in (h, w))
    padded = x[:, :, rows][:, :, :, columns]
    total = torch.zeros_like(x)
    for i, line in enumerate(kernel):
        for j, weight in enumerate(line):
            if weight:
                total = total + weight * padded[:, :, i : i + h, j : j + w]
    return total


def picked(x: Images, row: Pixels, column: Pixels) -> Images:
    """Return images whose pixel (i, j) is the pixel of `x` at (row[i, j], column[i, j])."""
    index = (row * x.shape[3] + column).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view_as(x)


def sampled(x: Images, row: Field, column: Field, border: Border) -> Images:
    """Return images whose pixel (i, j) is `x` at (row[i, j], column[i, j]), interpolated linearly."""
    (h, w), top, left = x.shape[2:], row.floor(), column.floor()
    down, right = (row - top)[:, None], (column - left)[:, None]
    rows = [border(top.long() + i, h) for i in (0, 1)]
    columns = [border(left.long() + j, w) for j in (0, 1)]
    upper, lower = (picked(x, r, columns[0]) * (1 - right) + picked(x, r, columns[1]) * right for r in rows)
    return upper * (1 - down) + lower * down


def streaked(x: Images, angle: Scalars, radius: int, sigma: float) -> Images:
    """Apply motion blur over 2·radius + 1 pixels; `angle` holds one direction per image, in degrees.

    Method: the weights of a half Gaussian on the pixels nearest to a ray, with repeated borders.
    """
    (h, w), length = x.shape[2:], 2 * radius + 1
    weights = bell(length - 1, sigma)[length - 1 :]
    ray = torch.deg2rad(angle.double())
    rows, columns = (torch.arange(n, device=x.device) for n in (h, w))
    total = torch.zeros_like(x)
    for i, weight in enumerate((weights / weights.sum()).tolist()):
        dy, dx = ((i * way - 0.5).ceil().long() for way in (ray.sin(), ray.cos()))
        row = edge(rows + dy[:, None], h)[:, :, None].expand(-1, -1, w)
        column = edge(columns + dx[:, None], w)[:, None].expand(-1, h, -1)
        total = total + weight * picked(x, row, column)
    return total
