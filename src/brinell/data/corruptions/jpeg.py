"""JPEG compression with exactly the results of the common codec (libjpeg).

Method: 16-bit fixed-point colours, chroma at half size in both directions, the 8 × 8 cosine transform in 13-bit
integers, and the standard tables scaled by quality. Decoding uses the transposed transform and interpolates chroma.
All numbers are integers below 2^53, so float64 represents them exactly in any order of summation.
References: ITU-T T.81 (tables: annex K); Loeffler, Ligtenberg & Moschytz 1989 (the transform).
"""

from functools import lru_cache

import torch
from torch import Tensor

from brinell.data.corruptions.image_ops import LEVELS, edge, nearest
from brinell.ops.types import Images, Keys

BLOCK, MIDDLE = 8, 128
# Bits of the transform's constants, bits kept between its two passes, and bits of the colour constants.
CONSTANT, BETWEEN, COLOUR = 13, 2, 16
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def jpeg_compression(x: Images, key: Keys, quality: int) -> Images:
    """Compress and decompress images with this JPEG quality: one channel as grey, three as colour."""
    levels = nearest(x).double()
    if x.shape[1] == 1:
        return (_coded(levels, _table(LUMINANCE, quality)) / LEVELS).float()
    luminance, blue, red = _to_ycc(levels)
    luminance = _coded(luminance, _table(LUMINANCE, quality))
    table = _table(CHROMINANCE, quality)
    blue, red = (_doubled(_coded(_halved(c), table), x.shape[2], x.shape[3]) for c in (blue, red))
    return (_to_rgb(luminance, blue, red) / LEVELS).float()


@lru_cache(maxsize=32)
def _table(standard: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """Return the quantisation steps for a quality: the standard table at quality 50, ones at quality 100."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = (torch.tensor(standard) * percent + 50) // 100
    return table.clamp(1, 255).double()


def _fixed(value: float, bits: int) -> int:
    """Return a constant in fixed point: value · 2^bits, rounded to an integer."""
    return int(abs(value) * 2**bits + 0.5) * (1 if value >= 0 else -1)


def _shifted(v: Tensor, bits: int) -> Tensor:
    """Divide by 2^bits and round half up."""
    return ((v + 2 ** (bits - 1)) / 2**bits).floor()


def _to_ycc(levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The codec rounds half down for chroma.
    zero = MIDDLE * 2**COLOUR - 1
    parts = (((0.299, 0.587, 0.114), 0), ((-0.16874, -0.33126, 0.5), zero), ((0.5, -0.41869, -0.08131), zero))
    y, blue, red = (_shifted(_weighted(levels, weights) + offset, COLOUR) for weights, offset in parts)
    return y, blue, red


def _weighted(channels: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return the weighted sum of the channels in units of 2^−16."""
    fixed = [_fixed(v, COLOUR) for v in weights]
    return sum((v * channels[:, i : i + 1] for i, v in enumerate(fixed)), torch.zeros_like(channels[:, :1]))


def _to_rgb(y: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    chroma = torch.cat([blue, red], 1) - MIDDLE
    parts = [_shifted(_weighted(chroma, weights), COLOUR) for weights in ((0, 1.402), (-0.34414, -0.71414), (1.772, 0))]
    return (y + torch.cat(parts, 1)).clamp(0, LEVELS)


def _repeated(x: Tensor, h: int, w: int) -> Tensor:
    """Extend images to h × w pixels by repeating the last row and column."""
    rows, columns = (edge(torch.arange(m, device=x.device), n) for m, n in ((h, x.shape[2]), (w, x.shape[3])))
    return x[:, :, rows][:, :, :, columns]


def _halved(x: Tensor) -> Tensor:
    """Average each square of 2 × 2 pixels, after padding rows to whole blocks; round halves down and up in turn."""
    (h, w), block = x.shape[2:], 2 * BLOCK
    h, w = h + h % 2, w + -w % block
    x = _repeated(x, h, w)
    total = x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]
    bias = 1 + torch.arange(w // 2, device=x.device) % 2
    return ((total + bias) / 4).floor()


def _doubled(x: Tensor, h: int, w: int) -> Tensor:
    """Double the size with weights 3/4 (nearer pixel) and 1/4 (farther pixel) in both directions, and cut to h × w."""
    x = x[..., : -(-w // 2)]
    above = torch.cat([x[:, :, :1], x[:, :, :-1]], 2)
    below = torch.cat([x[:, :, 1:], x[:, :, -1:]], 2)
    rows = torch.stack([3 * x + above, 3 * x + below], 3).flatten(2, 3)
    left = torch.cat([rows[..., :1], rows[..., :-1]], 3)
    right = torch.cat([rows[..., 1:], rows[..., -1:]], 3)
    # Round half up on the left and down on the right, so that there is no bias.
    pairs = torch.stack([((3 * rows + left + 8) / 16).floor(), ((3 * rows + right + 7) / 16).floor()], 4)
    return pairs.flatten(3)[:, :, :h, :w]


def _coded(x: Tensor, table: Tensor) -> Tensor:
    """Transform, quantise and restore one channel in blocks of 8 × 8 pixels."""
    (h, w), table, matrix = x.shape[2:], table.to(x.device), _cosines().to(x.device)
    x = _repeated(x, h + -h % BLOCK, w + -w % BLOCK) - MIDDLE
    x = x.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).transpose(3, 4)
    # Forward: rows, then columns. The result is 8 times the transform; the divisor corrects this.
    x = _shifted(x @ matrix.T, CONSTANT - BETWEEN)
    x = _shifted(matrix @ x, CONSTANT + BETWEEN)
    step = BLOCK * table
    x = x.sign() * ((x.abs() + step / 2) / step).floor() * table
    # Inverse: columns, then rows.
    x = _shifted(matrix.T @ x, CONSTANT - BETWEEN)
    x = _shifted(x @ matrix, CONSTANT + BETWEEN + 3) + MIDDLE
    return x.clamp(0, LEVELS).transpose(3, 4).flatten(4, 5).flatten(2, 3)[:, :, :h, :w]


@lru_cache(maxsize=1)
def _cosines() -> Tensor:
    """Return libjpeg's 8-point cosine transform as a float64 matrix (8, 8) of integers, in units of 2^−13.

    libjpeg factorises the transform and rounds only the constants of the factors, so each entry is a signed sum of
    rounded constants.
    """
    shared, twice = _fixed(0.541196100, CONSTANT), (_fixed(0.765366865, CONSTANT), _fixed(1.847759065, CONSTANT))
    even = torch.zeros(4, 4, dtype=torch.float64)
    one = 2**CONSTANT
    even[0], even[2] = torch.tensor([one] * 4), torch.tensor([one, -one, -one, one])
    even[1] = torch.tensor([shared + twice[0], shared, -shared, -shared - twice[0]])
    even[3] = torch.tensor([shared, shared - twice[1], twice[1] - shared, -shared])
    # Odd outputs 7, 5, 3, 1 from the differences of inputs 3−4, 2−5, 1−6, 0−7.
    diagonal = [_fixed(v, CONSTANT) for v in (0.298631336, 2.053119869, 3.072711026, 1.501321110)]
    ends, inner, first, second = (_fixed(v, CONSTANT) for v in (0.899976223, 2.562915447, 1.961570560, 0.390180644))
    odd = torch.full((4, 4), _fixed(1.175875602, CONSTANT), dtype=torch.float64) + torch.diag(torch.tensor(diagonal))
    for pair, weight in (((0, 3), ends), ((1, 2), inner), ((0, 2), first), ((1, 3), second)):
        index = torch.tensor(pair)
        odd[index[:, None], index] -= weight
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    matrix[::2, :4], matrix[::2, 4:] = even, even.flip(1)
    odd = odd.flip(0, 1)  # now outputs 1, 3, 5, 7 from the differences 0−7, 1−6, 2−5, 3−4
    matrix[1::2, :4], matrix[1::2, 4:] = odd, -odd.flip(1)
    return matrix
