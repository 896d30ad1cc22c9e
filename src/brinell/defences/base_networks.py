"""Small networks for the defences, trained in seconds on part of the demo images with fixed seeds."""

import math
from collections.abc import Callable, Sequence
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
# Weight of the loss that separates the features of the classes, and training epochs with it.
SEPARATION, SEPARATION_EPOCHS = 1e-3, 21


def held_out_images(n: int) -> Problem:
    """Return the first n held-out demo images, which no network is trained on.

    >>> len(held_out_images(8))
    8
    """
    x, y = demo()
    return Problem(x[:HELD_OUT], y[:HELD_OUT], name="demo")[:n]


def calibration_images() -> Problem:
    """Return the held-out images after the first 150; the thresholds of some detectors are set on them."""
    return held_out_images(HELD_OUT)[JUDGED:]


def training_data() -> tuple[Tensor, Tensor]:
    """Return the demo images and labels that are not held out, for training."""
    x, y = demo()
    return x[HELD_OUT:], y[HELD_OUT:]


def _start(net: nn.Module, seed: int) -> None:
    """Initialise the network: uniform weights from `seed` with the variance of He et al. 2015, and zero biases."""
    with torch.no_grad():
        for i, (name, p) in enumerate(net.named_parameters()):
            if p.ndim > 1:
                bound = math.sqrt(6 / p[0].numel())
                p.copy_(bound * (2 * rng.uniform(rng.keys(seed, torch.tensor([i])), tuple(p.shape))[0] - 1))
            elif name.endswith("bias"):
                p.zero_()


def train(net: nn.Module, seed: int = 0, epochs: int = EPOCHS, traps: Tensor | None = None) -> nn.Module:
    """Train a network briefly with Adam and cross-entropy; return it in eval mode with frozen parameters.

    The seed determines the order of the images, so equal seeds give equal weights on the same machine. With `traps`,
    one pattern per class, the network also sees every image with the pattern of a random class added and this class as
    label.
    """
    x, y = training_data()

    def loss(epoch: int, at: Tensor) -> Tensor:
        points, labels = x[at], y[at]
        if traps is not None:
            classes = rng.integers(rng.keys(seed + epoch, at), len(traps))
            points = torch.cat([points, (points + traps[classes]).clamp(0, 1)])
            labels = torch.cat([labels, classes])
        return nn.functional.cross_entropy(net(points), labels)

    return _fit(net, seed, epochs, loss)


def _fit(
    net: nn.Module, seed: int, epochs: int, loss: Callable[[int, Tensor], Tensor], more: Sequence[nn.Parameter] = ()
) -> nn.Module:
    """Minimise `loss`, a function of the epoch and indices of training images; return the network in eval mode.

    `more` are trainable parameters outside the network.
    """
    _start(net, seed)
    net.train().requires_grad_(True)
    optimiser = torch.optim.Adam([*net.parameters(), *more], lr=RATE)
    for epoch in range(epochs):
        order = rng.bits(rng.keys(seed, torch.tensor([epoch])), len(training_data()[0]))[0].argsort()
        for at in order.split(BATCH):
            optimiser.zero_grad()
            with torch.enable_grad():
                loss(epoch, at).backward()
            optimiser.step()
    for p in net.parameters():
        p.grad = None
    return net.eval().requires_grad_(False)


@cache
def plain_network(seed: int = 0) -> Any:
    """Return the demo architecture, trained on clean images without a defence."""
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
    """Return the demo architecture, trained with a tanh before the last layer."""
    net = DemoNet()
    net.layers[-2] = nn.Tanh()
    return train(net, 0)


@cache
def trapdoor_network() -> tuple[Any, Tensor]:
    """Return the demo architecture, trained with a trapdoor pattern for every class, and the patterns."""
    cells = rng.signs(rng.keys(5, torch.arange(10)), (1, 28 // COARSE, 28 // COARSE))
    traps = TRAP * cells.repeat_interleave(COARSE, 2).repeat_interleave(COARSE, 3)
    return train(DemoNet(), 0, LONGER, traps), traps


def prototype_conformity(f: Tensor, y: Tensor, centres: Tensor) -> Tensor:
    """Return, per row, a loss that is small if the features f are near their class centre and far from the others.

    Loss: ‖f − c_y‖² − mean over the other classes j of (‖f − c_j‖² + ‖c_y − c_j‖²). Reference: Mustafa et al. 2019.
    """
    to_centres, apart = (f[:, None] - centres).square().sum(2), (centres[:, None] - centres).square().sum(2)
    others = torch.ones_like(to_centres).scatter(1, y[:, None], 0.0)
    pushed = (others * (to_centres + apart[y])).sum(1) / (len(centres) - 1)
    return to_centres.gather(1, y[:, None])[:, 0] - pushed


@cache
def separated_network() -> Any:
    """Return the demo architecture, trained to keep the features of different classes far apart."""
    net, (x, y) = DemoNet(), training_data()
    centres = nn.Parameter(rng.normal(rng.keys(9, torch.arange(10)), (100,)))

    def loss(epoch: int, at: Tensor) -> Tensor:
        f = net.layers[:-1](x[at])
        conformity = prototype_conformity(f, y[at], centres).mean()
        return nn.functional.cross_entropy(net.layers[-1](f), y[at]) + SEPARATION * conformity

    return _fit(net, 0, SEPARATION_EPOCHS, loss, (centres,))


def interpolated(net: Any, x: Tensor, y: Tensor, eps: float, share: float, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return points that imitate the features of another image of the batch, and their soft labels.

    Each point makes one step of size eps, from a random point of the ball, towards a larger cosine similarity to the
    other image's features. Its label gives 1 − share to its own class and spreads `share` over all classes except the
    class of the other image. Reference: Zhang & Xu 2020, Adversarial interpolation training.
    """
    body, other = net.layers[:-1], torch.arange(len(x)).flip(0)
    start = (x + eps * (2 * rng.uniform(keys, tuple(x.shape[1:])) - 1)).clamp(0, 1).requires_grad_(True)
    with torch.enable_grad():
        alike = nn.functional.cosine_similarity(body(start), body(x[other]).detach()).sum()
        (up,) = torch.autograd.grad(alike, start)
    points = torch.clamp((start + eps * up.sign()).detach(), x - eps, x + eps).clamp(0, 1)
    own, avoided = nn.functional.one_hot(y, 10).float(), nn.functional.one_hot(y[other], 10).float()
    return points, (1 - share) * own + share * (1 - avoided) / 9


@cache
def interpolation_network() -> Any:
    """Return the demo architecture after adversarial interpolation training."""
    net, (x, y) = DemoNet(), training_data()

    def loss(epoch: int, at: Tensor) -> Tensor:
        points, labels = interpolated(net, x[at], y[at], 0.1, 0.5, rng.keys(1000 + epoch, at))
        return nn.functional.cross_entropy(net(points), labels)

    return _fit(net, 0, EPOCHS, loss)


def adversarials(net: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int = 20) -> Tensor:
    """Return the points after the last step of Linf PGD on cross-entropy, as training data for detectors."""
    z = x
    for _ in range(steps):
        z = z.detach().requires_grad_(True)
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(net(z), y, reduction="sum")
            (up,) = torch.autograd.grad(loss, z)
        z = torch.clamp((z + 0.1 * eps * up.sign()).detach(), x - eps, x + eps).clamp(0, 1)
    return z
