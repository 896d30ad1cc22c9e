"""Small data, small networks, and models that count what they are asked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import wrap
from brinell.ops import rng


class Counting(nn.Module):
    """A linear model that counts rows of forward and backward passes, and gradients of its weights."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Linear(inputs, classes)
        with torch.no_grad():
            self.net.weight.copy_(rng.normal(rng.keys(0, torch.arange(classes)), (inputs,)))
        self.forwards = self.backwards = self.calls = 0
        self.in_train_mode: list[bool] = []
        self.wants_weights: list[bool] = []

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.forwards += len(x)
        self.in_train_mode.append(self.training)
        self.wants_weights.append(self.net.weight.requires_grad)
        z = self.net(x.flatten(1))
        if z.requires_grad:
            z.register_hook(self._count)
        return z

    def _count(self, grad: Tensor) -> None:
        self.backwards += len(grad)


def noise(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(n)), shape)


@pytest.fixture
def counting() -> Callable[..., Any]:
    """A wrapped counting model of 12 inputs."""

    def make(classes: int = 5) -> Any:
        return wrap(Counting(12, classes))

    return make


@pytest.fixture
def points() -> tuple[Tensor, Tensor, Tensor]:
    """Eight points of 12 coordinates, labels of five classes, keys."""
    return noise(8, (12,)), torch.arange(8) % 5, rng.keys(3, torch.arange(8))
