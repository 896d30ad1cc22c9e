"""Small networks for the defences, trained in seconds on part of the demo images with fixed seeds."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.dataset import Problem
from brinell.data.demo import demo
from brinell.models.demo import DemoNet
from brinell.ops import rng

# The first images are attacked, the others are for training.
HELD_OUT = 300
# Images from this index on calibrate the detectors' thresholds.
JUDGED = 150
EPOCHS, BATCH, RATE = 12, 50, 2e-3
# Strength of a trapdoor, size of its cells, and training epochs with trapdoors.
TRAP, COARSE, LONGER = 0.05, 4, 15


def held_out_images(n: int) -> Problem:
    """Return the first n held-out demo images, which no network is trained on.

    >>> len(held_out_images(8))
    8
    """
    x, y = demo()
    return Problem(x[:HELD_OUT], y[:HELD_OUT], name="demo")[:n]


def calibration_images() -> Problem:
    """Return the held-out images after the first 150, for detector thresholds."""
    return held_out_images(HELD_OUT)[JUDGED:]


def training_data() -> tuple[Tensor, Tensor]:
    """Return the demo images and labels that are not held out, for training."""
    x, y = demo()
    return x[HELD_OUT:], y[HELD_OUT:]


def _start(net: nn.Module, seed: int) -> None:
    """Initialise the network with keyed uniform weights, with the variance of He et al. 2015, and zero biases."""
    with torch.no_grad():
        for i, (name, p) in enumerate(net.named_parameters()):
            if p.ndim > 1:
                bound = math.sqrt(6 / p[0].numel())
                p.copy_(bound * (2 * rng.uniform(rng.keys(seed, torch.tensor([i])), tuple(p.shape))[0] - 1))
            elif name.endswith("bias"):
                p.zero_()


def train(net: nn.Module, seed: int = 0, epochs: int = EPOCHS, traps: Tensor | None = None) -> nn.Module:
    """Train a network briefly with Adam and cross-entropy; return it in eval mode with frozen parameters.

    Batches follow keyed permutations, so equal seeds give equal weights on the same machine. With `traps`, one pattern
    per class, every image is also trained on with a pattern added and that pattern's class as its label.
    """
    x, y = training_data()
    _start(net, seed)
    net.train().requires_grad_(True)
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
    for epoch in range(epochs):
        order = rng.bits(rng.keys(seed, torch.tensor([epoch])), len(x))[0].argsort()
        for at in order.split(BATCH):
            optimiser.zero_grad()
            points, labels = x[at], y[at]
            if traps is not None:
                classes = rng.integers(rng.keys(seed + epoch, at), len(traps))
                points = torch.cat([points, (points + traps[classes]).clamp(0, 1)])
                labels = torch.cat([labels, classes])
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(net(points), labels)
                loss.backward()
            optimiser.step()
    for p in net.parameters():
        p.grad = None
    return net.eval().requires_grad_(False)


@cache
def plain_network(seed: int = 0) -> Any:
    """Return the demo architecture, trained without adversarial training and without a defence."""
    return train(DemoNet(), seed)


class NormNet(nn.Module):
    """The demo architecture with one more convolution and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=4, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=4, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 3 * 3, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@cache
def batch_norm_network() -> Any:
    """Return a network with batch normalisation and trained running statistics."""
    return train(NormNet(), 0)


@cache
def tanh_network() -> Any:
    """Return a network whose features pass through a tanh."""
    net = DemoNet()
    net.layers[-2] = nn.Tanh()
    return train(net, 0)


@cache
def trapdoor_network() -> tuple[Any, Tensor]:
    """Return the demo architecture, trained with a trapdoor pattern for every class, and the patterns."""
    cells = rng.signs(rng.keys(5, torch.arange(10)), (1, 28 // COARSE, 28 // COARSE))
    traps = TRAP * cells.repeat_interleave(COARSE, 2).repeat_interleave(COARSE, 3)
    return train(DemoNet(), 0, LONGER, traps), traps


def adversarials(net: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int = 20) -> Tensor:
    """Return the last iterates of Linf PGD on cross-entropy, as training data for detectors."""
    z = x
    for _ in range(steps):
        z = z.detach().requires_grad_(True)
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(net(z), y, reduction="sum")
            (up,) = torch.autograd.grad(loss, z)
        z = torch.clamp((z + 0.1 * eps * up.sign()).detach(), x - eps, x + eps).clamp(0, 1)
    return z
