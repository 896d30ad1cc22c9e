"""Small networks and data, `evaluate` without progress, and rows without what may differ between equal evaluations."""

from collections.abc import Callable

import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import brinell

INCIDENTAL = ["seconds", "adv_shard", "adv_row"]


@pytest.fixture(scope="session")
def quiet() -> Callable[..., brinell.Run]:
    def call(*args: object, **kwargs: object) -> brinell.Run:
        return brinell.evaluate(*args, **kwargs, progress=False)

    return call


@pytest.fixture(scope="session")
def outcome() -> Callable[[brinell.Run], pa.Table]:
    """A Run's rows without how fast they were computed and where their adversarials lie."""
    return lambda run: run.rows().drop_columns(INCIDENTAL).combine_chunks()


@pytest.fixture(scope="session")
def net() -> nn.Module:
    """A random convolutional network for images of 8 by 8 with ten classes that all occur."""
    made = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10))
    generator = torch.Generator().manual_seed(10)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p[0].numel() ** 0.5)
        made[3].bias -= made(torch.rand(256, 1, 8, 8, generator=generator)).mean(0)
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def images(net: nn.Module) -> tuple[Tensor, Tensor]:
    """40 images and the labels the network gives them, the last one wrong on purpose."""
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    y = net(x).argmax(1)
    y[-1] = (y[-1] + 1) % 10
    return x, y
