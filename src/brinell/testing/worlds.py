"""Models with known distances: linear classifiers with closed-form distances, and small ReLU networks."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.norms import NORMS, Norm
from brinell.ops.rowwise import flat

# Samples lie within SPREAD of the centre of the box. Their distance is below SPREAD in every norm and above LEAST in
# L1, where distances are largest.
SPREAD, LEAST = 0.3, 0.05


class _Linear(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)

    def forward(self, x: Tensor) -> Any:
        return nn.functional.linear(flat(x), self.weight, self.bias)


@dataclass(frozen=True)
class LinearWorld:
    """A linear model W·x + b on flattened inputs, with samples that it classifies correctly and their labels."""

    weight: Tensor
    bias: Tensor
    x: Tensor
    y: Tensor

    @property
    def classifier(self) -> Classifier:
        """The model to attack."""
        return wrap(_Linear(self.weight, self.bias).eval(), name="linear world")

    def gaps(self) -> tuple[Tensor, Tensor]:
        """Return, per sample and class j, the gap z_y − z_j (b, k) and the normal w_j − w_y (b, k, n), in float64."""
        z = flat(self.x).double() @ self.weight.double().T + self.bias.double()
        slope = self.weight.double()[None] - self.weight.double()[self.y][:, None]
        return z.gather(1, self.y[:, None]) - z, slope

    def distances(self, norm: Norm | str) -> Tensor:
        """Return the distance to every class, (b, k) in float64: z_y − z_j over the dual norm of w_j − w_y.

        The distance to the true class is inf. The box is ignored, which makes no difference for the samples of
        `linear_world`; `boxed_distances` respects it.
        """
        gap, slope = self.gaps()
        dual = _norm(norm).dual_size(slope.flatten(0, 1)).view_as(gap)
        return torch.where(dual > 0, gap / dual, torch.inf)

    def boxed_distances(self, norm: Norm | str) -> Tensor:
        """Return the distance to every class inside the unit box, (b, k); inf if the box does not reach the class."""
        (gap, slope), x = self.gaps(), flat(self.x).double()
        each = x[:, None].expand_as(slope).flatten(0, 1)
        w = slope.flatten(0, 1)
        d = _norm(norm).to_hyperplane(w, gap.flatten(), -each, 1 - each)
        reached = ((w * d).sum(1) - gap.flatten()).abs() <= 1e-9
        size = torch.where(reached & (w != 0).any(1), _norm(norm).size(d), torch.inf)
        return size.view_as(gap)

    def distance(self, norm: Norm | str) -> Tensor:
        """Return per sample the distance to the nearest other class, in float64, ignoring the box."""
        return self.distances(norm).amin(1)


def _norm(norm: Norm | str) -> Norm:
    return NORMS[norm] if isinstance(norm, str) else norm


def _noise(seed: int, purpose: int, shape: tuple[int, ...]) -> Tensor:
    return rng.normal(rng.fold(rng.keys(seed, torch.arange(1, device="cpu")), purpose), shape)[0]


def _fits(world: LinearWorld) -> Tensor:
    """Return the mask of samples whose nearest boundary point, in every norm, is in the box at a suitable distance."""
    free = torch.stack([world.distance(norm) for norm in NORMS.values()])
    boxed = torch.stack([world.boxed_distances(norm).amin(1) for norm in NORMS.values()])
    roomy = (boxed <= free * (1 + 1e-9)).all(0)
    return roomy & (free.amax(0) < SPREAD) & (free.amax(0) > LEAST)


def _placed(weight: Tensor, bias: Tensor, shape: tuple[int, ...], n: int, seed: int) -> LinearWorld:
    """Return a world with the first n suitable (`_fits`) random samples around the centre of the box."""
    x = 0.5 + SPREAD * (2 * rng.uniform(rng.keys(seed + 1, torch.arange(64 * n, device="cpu")), shape) - 1)
    y = (flat(x).double() @ weight.double().T + bias.double()).argmax(1)
    keep = _fits(LinearWorld(weight, bias, x, y)).nonzero()[:n, 0]
    if len(keep) < n:
        raise ValueError(f"only {len(keep)} of {64 * n} samples are suitable; use a smaller n or another seed")
    return LinearWorld(weight, bias, x[keep], y[keep])


def linear_world(classes: int = 3, shape: tuple[int, ...] = (24,), n: int = 16, seed: int = 0) -> LinearWorld:
    """Return a random linear classifier and n samples well inside the box; equal arguments give equal worlds.

    >>> world = linear_world(classes=4, shape=(1, 5, 5), n=8)
    >>> world.x.shape, bool((world.distance("L1") >= world.distance("L2")).all())
    (torch.Size([8, 1, 5, 5]), True)
    """
    size = math.prod(shape)
    weight = _noise(seed, 1, (classes, size))
    # All logits are near 0 at the centre of the box, so that every class has samples.
    bias = -weight.sum(1) / 2 + 0.1 * _noise(seed, 2, (classes,))
    return _placed(weight, bias, shape, n, seed)


def duel(classes: int = 4, shape: tuple[int, ...] = (24,), n: int = 16, seed: int = 0) -> LinearWorld:
    """Return a linear world in which only two classes compete; all other classes have far lower logits everywhere.

    With one competitor, every untargeted loss has its maximum over the ball at a point known in closed form.

    >>> world = duel(classes=5, n=4)
    >>> world.classifier.forward(world.x).logits.shape, int(world.y.max())
    (torch.Size([4, 5]), 1)
    """
    live = linear_world(2, shape, n, seed)
    weight = torch.cat([live.weight, torch.zeros(classes - 2, live.weight.shape[1], dtype=torch.float32, device="cpu")])
    behind = -10 * (1 + 0.1 * torch.arange(classes - 2, device="cpu")) * live.weight.norm(dim=1).max()
    return LinearWorld(weight, torch.cat([live.bias, behind]), live.x, live.y)


class _Relu(nn.Module):
    def __init__(self, first: Tensor, offset: Tensor, second: Tensor, bias: Tensor) -> None:
        super().__init__()
        weights = (first, offset, second, bias)
        self.first, self.offset, self.second, self.bias = (nn.Parameter(w, False) for w in weights)

    def forward(self, x: Tensor) -> Any:
        return nn.functional.linear(
            nn.functional.linear(flat(x), self.first, self.offset).relu(), self.second, self.bias
        )


@dataclass(frozen=True)
class ReluWorld:
    """A network V·max(W·x + a, 0) + b with so few hidden units that all activation patterns can be enumerated."""

    first: Tensor
    offset: Tensor
    second: Tensor
    bias: Tensor
    x: Tensor
    y: Tensor

    @property
    def classifier(self) -> Classifier:
        """The model to attack."""
        return wrap(_Relu(self.first, self.offset, self.second, self.bias).eval(), name="ReLU world")


def relu_world(inputs: int = 4, hidden: int = 5, classes: int = 2, n: int = 8, seed: int = 0) -> ReluWorld:
    """Return a random network with one hidden layer and n samples in the box; equal arguments give equal worlds.

    >>> world = relu_world(n=3)
    >>> bool((world.classifier.forward(world.x).logits.argmax(1) == world.y).all())
    True
    """
    first, second = _noise(seed, 3, (hidden, inputs)), _noise(seed, 4, (classes, hidden))
    # Units switch and classes change near the centre of the box.
    offset = -first.sum(1) / 2 + 0.2 * _noise(seed, 5, (hidden,))
    middle = (0.5 * first.sum(1) + offset).relu()
    x = rng.uniform(rng.keys(seed + 2, torch.arange(n, device="cpu")), (inputs,))
    world = ReluWorld(first, offset, second, -(second @ middle), x, torch.zeros(n, dtype=torch.long, device="cpu"))
    logits = world.classifier.forward(x).logits
    return ReluWorld(first, offset, second, world.bias, x, logits.argmax(1))
