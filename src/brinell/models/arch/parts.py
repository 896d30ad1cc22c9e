"""Layers and functions that several network families share."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brinell.errors import one_of

T = TypeVar("T", bound=nn.Module)


def shown_as(name: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that fixes the name in a module's repr, which enters the fingerprints of models."""

    def freeze(module: type[T]) -> type[T]:
        module._get_name = lambda self: name  # type: ignore[method-assign]
        return module

    return freeze


def conv3(inside: int, outside: int, stride: int = 1, *, padding: int = 1) -> nn.Conv2d:
    """Make a 3×3 convolution without bias."""
    return nn.Conv2d(inside, outside, 3, stride, padding=padding, bias=False)


def conv1(inside: int, outside: int, stride: int = 1) -> nn.Conv2d:
    """Make a 1×1 convolution without bias."""
    return nn.Conv2d(inside, outside, 1, stride, bias=False)


def stacked(
    make: Callable[[int, int, int], nn.Module], n: int, inside: int, outside: int, stride: int
) -> nn.Sequential:
    """Return n blocks of `make` in sequence; the first block changes the width to `outside` and the resolution."""
    return nn.Sequential(make(inside, outside, stride), *(make(outside, outside, 1) for _ in range(n - 1)))


def through(net: nn.Module, x: Tensor, name: str, numbers: Iterable[int]) -> Tensor:
    """Apply the submodules of `net` called `name` + number to x, one after another."""
    for i in numbers:
        x = getattr(net, f"{name}{i}")(x)
    return x


def pooled(x: Tensor) -> Tensor:
    """Return the mean of every channel over all positions: global average pooling."""
    return x.mean((2, 3))


def same(x: Tensor, stride: int) -> Tensor:
    """Return x padded with zeros like TensorFlow's "SAME" for a 3×3 kernel: with stride 2 only at right and bottom."""
    return F.pad(x, (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))


class Pssilu(nn.Module):
    """Parametric shifted SiLU with learnt alpha and beta: x (sigmoid(|alpha| x) − |beta|) / (1 − |beta|).

    Reference: Dai, Mahloujifar & Mittal 2022, Parameterizing activation functions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((1,), 1e-8))
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        beta = self.beta.abs()
        return x * (torch.sigmoid(self.alpha.abs() * x) - beta) / (1 - beta)


ACTIVATIONS: dict[str, type[nn.Module]] = {"pssilu": Pssilu, "relu": nn.ReLU, "silu": nn.SiLU}


def activation(name: str) -> nn.Module:
    """Make the activation called `name`; swish has the name "silu"."""
    return ACTIVATIONS[one_of("an activation", name, ACTIVATIONS)]()


def groups(depth: int) -> int:
    """Return the number of blocks in each of the three groups of a WideResNet of this depth.

    >>> groups(28)
    4
    """
    return (depth - 4) // 6
