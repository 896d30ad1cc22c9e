"""All corruptions by name, with their published constants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.data.corruptions import blur, digital, noise, weather
from brinell.data.corruptions.image_ops import LEVELS, truncated
from brinell.data.corruptions.jpeg import jpeg_compression
from brinell.errors import InputError, one_of
from brinell.ops import rng
from brinell.ops.defaults import standard_defaults
from brinell.ops.types import Images

SEVERITIES = (1, 2, 3, 4, 5)
# Images with a shorter side of at most this use the constants of CIFAR-10-C, larger images those of ImageNet-C.
SMALL = 64
# The published constants of elastic transforms are relative to 32 pixels and, for images of 224 pixels, to 244.
OF_244 = 244 / 224

Numbers = tuple[int | float, ...]
Constants = tuple[Numbers, Numbers, Numbers, Numbers, Numbers]


@dataclass(frozen=True)
class Corruption:
    """A corruption: its function and its constants at severities 1 to 5.

    `small` are the constants of CIFAR-10-C, `large` those of ImageNet-C. `common` marks the 15 benchmark corruptions.
    """

    name: str
    family: str
    apply: Callable[..., Images]
    small: Constants
    large: Constants
    common: bool = True

    def constants(self, severity: int, side: int) -> Numbers:
        """Return the constants of a severity for images whose shorter side has `side` pixels."""
        return (self.small if side <= SMALL else self.large)[severity - 1]


def _one(*values: int | float) -> Any:
    """Return the constants for five severities of a corruption that has a single constant."""
    return tuple((v,) for v in values)


ALL = (
    Corruption("gaussian_noise", "noise", noise.gaussian_noise,
        _one(0.04, 0.06, 0.08, 0.09, 0.10), _one(0.08, 0.12, 0.18, 0.26, 0.38)),
    Corruption("shot_noise", "noise", noise.shot_noise,
        _one(500.0, 250.0, 100.0, 75.0, 50.0), _one(60.0, 25.0, 12.0, 5.0, 3.0)),
    Corruption("impulse_noise", "noise", noise.impulse_noise,
        _one(0.01, 0.02, 0.03, 0.05, 0.07), _one(0.03, 0.06, 0.09, 0.17, 0.27)),
    # radius of the disc, width of its soft edge
    Corruption("defocus_blur", "blur", blur.defocus_blur,
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
        ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5))),
    # width of the blur, reach, rounds
    Corruption("glass_blur", "blur", blur.glass_blur,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    # radius, width
    Corruption("motion_blur", "blur", blur.motion_blur,
        ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
        ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))),
    # largest factor, step
    Corruption("zoom_blur", "blur", blur.zoom_blur,
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))),
    # mean and spread of the noise, zoom, threshold, radius and width of the streaks, share kept
    Corruption("snow", "weather", weather.snow,
        (
            (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9), (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
        ),
        (
            (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8), (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7), (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
        )),
    # shares of the image and of the ice
    Corruption("frost", "weather", weather.frost,
        ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
    # amount, decay of the clouds' roughness
    Corruption("fog", "weather", weather.fog,
        ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
        ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))),
    Corruption("brightness", "weather", digital.brightness,
        _one(0.05, 0.1, 0.15, 0.2, 0.3), _one(0.1, 0.2, 0.3, 0.4, 0.5)),
    Corruption("contrast", "digital", digital.contrast,
        _one(0.75, 0.5, 0.4, 0.3, 0.15), _one(0.4, 0.3, 0.2, 0.1, 0.05)),
    # size and smoothness of the displacements, size of the affine map
    Corruption("elastic_transform", "digital", digital.elastic_transform,
        ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        (
            (2 * OF_244, 0.7 * OF_244, 0.1 * OF_244), (2 * OF_244, 0.08 * OF_244, 0.2 * OF_244),
            (0.05 * OF_244, 0.01 * OF_244, 0.02 * OF_244), (0.07 * OF_244, 0.01 * OF_244, 0.02 * OF_244),
            (0.12 * OF_244, 0.01 * OF_244, 0.02 * OF_244),
        )),
    Corruption("pixelate", "digital", digital.pixelate,
        _one(0.95, 0.9, 0.85, 0.75, 0.65), _one(0.6, 0.5, 0.4, 0.3, 0.25)),
    Corruption("jpeg_compression", "digital", jpeg_compression,
        _one(80, 65, 58, 50, 40), _one(25, 18, 15, 10, 7)),
    Corruption("speckle_noise", "noise", noise.speckle_noise,
        _one(0.06, 0.1, 0.12, 0.16, 0.2), _one(0.15, 0.2, 0.35, 0.45, 0.6), common=False),
    Corruption("gaussian_blur", "blur", blur.gaussian_blur,
        _one(0.4, 0.6, 0.7, 0.8, 1.0), _one(1.0, 2.0, 3.0, 4.0, 6.0), common=False),
    # mean, spread and width of the noise, threshold, amount (water) or width (mud), mud instead of water
    Corruption("spatter", "weather", weather.spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1.0, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        (
            (0.65, 0.3, 4.0, 0.69, 0.6, 0), (0.65, 0.3, 3.0, 0.68, 0.6, 0), (0.65, 0.3, 2.0, 0.68, 0.5, 0),
            (0.65, 0.3, 1.0, 0.65, 1.5, 1), (0.67, 0.4, 1.0, 0.65, 1.5, 1),
        ),
        common=False),
    Corruption("saturate", "digital", digital.saturate,
        ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
        ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
        common=False),
)  # fmt: skip

CORRUPTIONS = {c.name: c for c in ALL}
COMMON = tuple(c.name for c in ALL if c.common)
EXTRA = tuple(c.name for c in ALL if not c.common)


@standard_defaults()
def corrupt(x: Tensor, name: str, severity: int, ids: Any, seed: int = 0, *, eight_bit: bool = True) -> Tensor:
    """Corrupt images (n, 1 or 3, h, w) in [0, 1]; the result depends on the image, seed, id, name and severity only.

    Method: Hendrycks & Dietterich 2019, with the constants for this image size, and keyed noise. `eight_bit`
    truncates the result to 256 levels, as in the published data sets. Runs on the device of the images. See
    docs/corruptions.md.

    >>> x = torch.rand(2, 3, 32, 32)
    >>> both = corrupt(x, "snow", 3, ids=[7, 4])
    >>> torch.equal(both[1:], corrupt(x[1:], "snow", 3, ids=[4])), torch.equal(both, both.mul(255).round() / 255)
    (True, True)
    """
    check(name, severity)
    x, ids = _images(x), torch.as_tensor(ids, dtype=torch.int64, device=x.device)
    if ids.shape != (len(x),):
        raise InputError(expected=f"{len(x)} ids", got=f"shape {tuple(ids.shape)}", remedy="Pass one id per image.")
    chosen = CORRUPTIONS[name]
    key = rng.fold(rng.fold(rng.keys(seed, ids), rng.digest(name)), severity)
    result = chosen.apply(x, key, *chosen.constants(severity, min(x.shape[2:]))).clamp(0, 1)
    return truncated(result) / LEVELS if eight_bit else result


def check(name: str, severity: int) -> None:
    """Raise an InputError if the corruption or the severity is unknown; it suggests similar names."""
    one_of("a corruption", name, CORRUPTIONS)
    one_of("a severity", severity, SEVERITIES)


def _images(x: Tensor) -> Images:
    if not x.is_floating_point() or x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < 8:
        raise InputError(
            expected="images as floating point of shape (n, 1 or 3, height, width), at least 8 x 8 pixels",
            got=f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}",
            remedy="Pass grey or RGB images in this shape: corruptions are defined for these only.",
        )
    return x.float()
