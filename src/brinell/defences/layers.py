"""The layers that the defences add, with the gradients of the original or of the stronger evaluation."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from brinell.models.arch.parts import shown_as
from brinell.models.bpda import bpda
from brinell.ops import rng

Function = Callable[[Tensor], Tensor]
# The slope of the relaxed thermometer at the last step of the original attack.
STEEP = 1e5


class Defended(nn.Module):
    """A defended network: features (`body`), a linear readout (`head`), and the defence's map of logits (`after`)."""

    def __init__(self, body: nn.Module, head: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.after = nn.Identity() if after is None else after

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.after(self.head(self.body(x)))
        return logits


def split_head(net: Any) -> tuple[Any, nn.Linear]:
    """Return a network without its last layer, and the last layer."""
    return net.layers[:-1], net.layers[-1]


class Thermometer(nn.Module):
    """A thermometer encoding: channel k is 1 where the value exceeds threshold k, else 0 (Buckman et al. 2018)."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: Tensor) -> Tensor:
        return (x > self.thresholds(x)).float()

    def thresholds(self, x: Tensor) -> Tensor:
        """Return the thresholds, one per level, shaped for broadcasting with x."""
        return (torch.arange(self.levels, device=x.device, dtype=x.dtype) / self.levels).view(1, -1, 1, 1)

    def ramps(self, x: Tensor) -> Tensor:
        """Return the encoding of x with linear ramps instead of steps."""
        return ((x - self.thresholds(x)) * self.levels).clamp(0, 1)

    def cliffs(self, x: Tensor) -> Tensor:
        """Return the encoding of x with steep sigmoids instead of steps: flat except near a threshold."""
        return ((x - self.thresholds(x)) * STEEP).sigmoid()


def spread(conv: nn.Conv2d, levels: int) -> nn.Conv2d:
    """Return a convolution on thermometer channels with the same output as `conv` on the quantised image."""
    wide = nn.Conv2d(levels, conv.out_channels, 4, 2, 1)
    wide.weight = nn.Parameter(conv.weight.detach().expand(-1, levels, -1, -1) / levels, requires_grad=False)
    wide.bias = conv.bias
    return wide


class Winners(nn.Module):
    """A k-winners-take-all layer: it keeps the largest `share` of activations; the others are 0 (Xiao et al. 2020)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        f = x.flatten(1)
        least = f.topk(max(1, int(self.share * f.shape[1])), dim=1).values[:, -1:]
        return torch.where(f >= least, f, 0.0).view_as(x)


def quantised(levels: int) -> Function:
    """Return a function that rounds values in [0, 1] to `levels` equally spaced levels."""

    def round_off(x: Tensor) -> Tensor:
        return (x * (levels - 1)).round() / (levels - 1)

    return round_off


def cosines(n: int) -> Tensor:
    """Return the matrix (n, n) of the orthonormal discrete cosine transform."""
    k = torch.arange(n, dtype=torch.float64)
    basis = (math.pi / n * (k[None] + 0.5) * k[:, None]).cos() * math.sqrt(2 / n)
    basis[0] /= math.sqrt(2)
    return basis.float()


class Jpeg(nn.Module):
    """A JPEG-like compression: it rounds the cosine coefficients of 7 × 7 blocks, coarser at higher frequencies.

    It imitates the compression in Guo et al. 2018.
    """

    def __init__(self, coarseness: float, side: int = 7) -> None:
        super().__init__()
        self.side = side
        step = 1 + torch.arange(side)[:, None] + torch.arange(side)[None]
        self.register_buffer("basis", cosines(side))
        self.register_buffer("step", coarseness * step.float())

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        s = self.side
        blocks = x.view(b, c, h // s, s, w // s, s).transpose(3, 4)
        basis, step = self.get_buffer("basis"), self.get_buffer("step")
        coefficients = basis @ blocks @ basis.T
        coarse = (coefficients / step).round() * step
        back = basis.T @ coarse @ basis
        return back.transpose(3, 4).reshape(b, c, h, w).clamp(0, 1)


class Draws(nn.Module):
    """A source of keyed noise for a randomised defence: new noise at every call, the same sequence in all instances."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.calls = seed, 0

    def keys(self, x: Tensor) -> Tensor:
        """Return a key for the noise of every row, different at every call."""
        self.calls += 1
        return rng.keys(self.seed, torch.arange(len(x), device=x.device) + (self.calls << 24))


class Noise(Draws):
    """A layer that adds Gaussian noise to the input."""

    def __init__(self, deviation: float, seed: int = 0) -> None:
        super().__init__(seed)
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.deviation * rng.normal(self.keys(x), tuple(x.shape[1:]))


class Mixup(nn.Module):
    """A layer that returns mean features over mixtures of the input with every image of a pool (Pang et al. 2020).

    The published mixup inference draws images from a large pool. Using all images of a small pool removes the noise and
    keeps the flaw.
    """

    def __init__(self, body: nn.Module, pool: Tensor, share: float) -> None:
        super().__init__()
        self.body, self.share = body, share
        self.register_buffer("pool", pool)

    def forward(self, x: Tensor) -> Tensor:
        pool: Any = self.pool
        mixed = self.share * x[:, None] + (1 - self.share) * pool
        features: Tensor = self.body(mixed.flatten(0, 1))
        return features.view(len(x), len(pool), -1).mean(1)


class Averaged(nn.Module):
    """A layer that returns mean features over several copies of the input, each changed by the module `random`."""

    def __init__(self, body: nn.Module, random: nn.Module, copies: int) -> None:
        super().__init__()
        self.body, self.random, self.copies = body, random, copies

    def forward(self, x: Tensor) -> Tensor:
        many = x[:, None].expand(-1, self.copies, *x.shape[1:]).flatten(0, 1)
        features: Tensor = self.body(self.random(many))
        return features.view(len(x), self.copies, -1).mean(1)


class Vote(nn.Module):
    """An ensemble of networks with one vote each; the output counts votes per class.

    Its gradient is the gradient of the saturated softmax or, with `stronger`, of the summed logits (BPDA).
    """

    def __init__(self, bodies: Sequence[nn.Module], heads: Sequence[nn.Module], gain: float, stronger: bool) -> None:
        super().__init__()
        self.bodies, self.heads = nn.ModuleList(bodies), nn.ModuleList(heads)
        self.gain, self.stronger = gain, stronger
        self.vote = bpda(self._votes) if stronger else _Function(self._votes)

    def _votes(self, z: Tensor) -> Tensor:
        return (self.gain * z).softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        votes = [self.vote(head(body(x))) for body, head in zip(self.bodies, self.heads, strict=True)]
        # A sum, not a mean: counts of votes are not mistaken for probabilities.
        return torch.stack(votes).sum(0)


class Ripple(nn.Module):
    """A layer that adds a high-frequency sine to each feature: the gradient is hidden, the value changes little."""

    def __init__(self, height: float, frequency: float) -> None:
        super().__init__()
        self.height, self.frequency = height, frequency

    def forward(self, x: Tensor) -> Tensor:
        return x + self.height * (self.frequency * x).sin()


@shown_as("Scale")
class ScaledLogits(nn.Module):
    """A layer that multiplies the logits by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Codes(nn.Module):
    """A layer from bits to logits: the squashed bits times the code of each class (Verma & Swami 2019)."""

    def __init__(self, codes: Tensor, gain: float, stronger: bool) -> None:
        super().__init__()
        self.squash = squash(gain, stronger)
        self.register_buffer("codes", codes)

    def forward(self, bits: Tensor) -> Tensor:
        codes: Any = self.codes
        logits: Tensor = self.squash(bits) @ codes.T
        return logits


def squash(gain: float, stronger: bool) -> nn.Module:
    """Return a module that computes tanh(gain · x), which saturates; with `stronger` its gradient is 1 (BPDA)."""

    def flat(x: Tensor) -> Tensor:
        return (gain * x).tanh()

    return bpda(flat) if stronger else _Function(flat)


class _Function(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def module(function: Function) -> nn.Module:
    """Return a module that applies the function to its input."""
    return _Function(function)


class Prototypes(nn.Module):
    """A layer with the logits −‖φ − p_c‖² · factor: the nearest class centre p_c decides (Pang et al. 2020b)."""

    def __init__(self, centres: Tensor, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("centres", centres)

    def forward(self, f: Tensor) -> Tensor:
        centres: Any = self.centres
        return -self.factor * (f[:, None] - centres).square().sum(2)


class OwnStatistics(nn.Module):
    """A batch normalisation that normalises each image by its own statistics, as train mode does for a batch of one."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, unbiased=False)
        y = (x - mean) / (variance + self.norm.eps).sqrt()
        return y * self.norm.weight.view(1, -1, 1, 1) + self.norm.bias.view(1, -1, 1, 1)
