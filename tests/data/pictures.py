"""Images to corrupt: fractal clouds with shapes in front, and the real ones that are at hand."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from brinell.data.corruptions.weather import clouds
from brinell.ops import rng


def synthetic(n: int, size: int = 32, seed: int = 5) -> Tensor:
    """Natural-like colour images: clouds whose power falls with frequency, one bright and one dark disc, 8 bits."""
    key = rng.keys(seed, torch.arange(n))
    power = 1 << (size - 1).bit_length()
    shared = clouds(rng.fold(key, 1), power, 1.6)[:, None, :size, :size]
    own = torch.stack([clouds(rng.fold(key, 2 + c), power, 1.8)[:, :size, :size] for c in range(3)], 1)
    x = 0.15 + 0.4 * shared + 0.3 * own
    places = rng.uniform(rng.fold(key, 9), (2, 6))
    grid = (torch.arange(size) + 0.5) / size
    for disc, value in zip(places.unbind(1), (0.95, 0.05), strict=True):
        row, column, radius, *colour = (v[:, None, None] for v in disc.unbind(1))
        inside = (grid[:, None] - row) ** 2 + (grid - column) ** 2 < (0.1 + 0.15 * radius) ** 2
        tint = value + (torch.cat(colour, 1)[:, :, :, None] - 0.5) * 0.1
        x = torch.where(inside[:, None], tint.expand_as(x), x)
    return (x.clamp(0, 1) * 255).round() / 255


def cifar(shared: Path, n: int) -> Tensor:
    """The first test images of CIFAR-10."""
    image = pytest.importorskip("PIL.Image")
    file = shared / "data" / "cifar10" / "test_batch.webp"
    if not file.exists():
        pytest.skip("needs CIFAR-10")
    with image.open(file) as sheet:
        strip = sheet.convert("RGB").crop((0, 0, 3200, 32 * -(-n // 100)))
    images = torch.frombuffer(bytearray(strip.tobytes()), dtype=torch.uint8).view(-1, 32, 100, 32, 3)
    return images.permute(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)[:n].float() / 255
