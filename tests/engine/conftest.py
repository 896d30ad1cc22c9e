"""Models that count what they are asked."""

import pytest
import torch
from torch import nn

from brinell.ops import rng
from brinell.testing import linear_world


class Counting(nn.Module):
    """A linear model that keeps every input row and every gradient row it was asked for, by the row's own bytes."""

    def __init__(self, world) -> None:
        super().__init__()
        self.net = world.classifier.module
        self.forwards = self.backwards = self.calls = 0
        self.shapes: set[int] = set()

    def forward(self, x):
        self.calls += 1
        self.forwards += len(x)
        self.shapes.add(len(x))
        z = self.net(x)
        if z.requires_grad:
            z.register_hook(self._count)
        return z

    def _count(self, grad):
        self.backwards += len(grad)


@pytest.fixture
def counting():
    """A world of 24 samples, its counting model, and eps such that about half of the samples can be broken."""
    world = linear_world(classes=3, n=24)
    return world, Counting(world).eval(), world.distance("L2").median().item()


@pytest.fixture
def noise():
    def draw(n: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
        return rng.normal(rng.keys(seed, torch.arange(n)), shape)

    return draw
