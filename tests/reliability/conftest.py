"""Small networks with fixed weights, and an attack that knows the answer."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from brinell.core.attack import Attack, AttackState, Requires
from brinell.ops import rng

SHAPE = (1, 6, 6)


def fixed(net: nn.Module, seed: int = 0) -> nn.Module:
    """The network with weights of torch's usual size that depend on the seed alone."""
    for k, weight in enumerate(net.parameters()):
        fan = max(weight[0].numel() if weight.ndim > 1 else 1, 1)
        noise = rng.normal(rng.keys(seed * 1000 + k, torch.arange(1)), tuple(weight.shape))[0]
        weight.data = noise * (2 / fan) ** 0.5 if weight.ndim > 1 else 0.1 * noise
    return net.eval().requires_grad_(False)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 80), nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 4))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12 * 36, 3))


NETS = {"linear": linear, "mlp": mlp, "conv": conv}


def samples(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, some pixels on the border of the box, and labels that mean nothing."""
    key = rng.keys(seed + 77, torch.arange(n))
    return (1.4 * rng.uniform(key, SHAPE) - 0.2).clamp(0, 1), rng.integers(key, 3)


@dataclass(frozen=True)
class State(AttackState):
    t: torch.Tensor
    x: torch.Tensor


@dataclass(frozen=True, eq=False)
class Knowing(Attack[Any]):
    """Goes to the witness of every sample, whose id chooses it."""

    ids: torch.Tensor
    witnesses: torch.Tensor
    name: str = "knowing"
    loss: str = "margin"
    minimum_norm = False
    requires = Requires.LOGITS
    queries = 1

    def init(self, p, ball):
        at = (p.id[:, None] == self.ids[None]).int().argmax(1)
        return State(torch.zeros_like(p.y), self.witnesses[at])

    def step(self, s, a, p, ball):
        return State(s.t + 1, s.x)


@pytest.fixture(scope="module", autouse=True)
def _quick(unchecked):
    """Shapes are checked by the tests of the parts."""
