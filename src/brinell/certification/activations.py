"""Activation functions and the lines that bound them from below and above on an interval."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from brinell.certification.operations import Operation

# Points of the grid on which a smooth function is compared with a line.
GRID = 33
# Libraries compute tanh, exp and erf within a few units in the last place; sums and products add some more.
SMOOTH_TERMS = 16


class Lines(NamedTuple):
    """A line below and a line above a function on an interval, element by element: slopes and intercepts."""

    lower_slope: Tensor
    lower_intercept: Tensor
    upper_slope: Tensor
    upper_intercept: Tensor


class Activation(Operation):
    """A function that is applied to every element."""

    kinked = False
    """Whether the function consists of two linear pieces that meet at 0, so that branch and bound can split there."""

    def range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value on the interval."""
        raise NotImplementedError

    def choices(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        """Return the free parameters of the lines, each in [0, 1], as CROWN chooses them."""
        raise NotImplementedError

    def lines(self, lower: Tensor, upper: Tensor, choices: tuple[Tensor, ...]) -> Lines:
        """Return sound lines on the interval, whatever the free parameters in [0, 1] are."""
        raise NotImplementedError

    def unstable(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the mask of the elements on whose interval the function is not linear."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Relu(Activation):
    """ReLU, or leaky ReLU with a slope between 0 and 1 below zero."""

    slope: float = 0.0
    kinked = True

    @property
    def terms(self) -> int:  # type: ignore[override]
        # The slope is rounded to float32, and so is the product.
        return 2 * int(self.slope != 0)

    def apply(self, *x: Tensor) -> Tensor:
        return F.leaky_relu(x[0], self.slope) if self.slope else x[0].relu()

    def magnitude(self, *x: Tensor) -> Tensor:
        return x[0]

    def range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return self.apply(lower), self.apply(upper)

    def unstable(self, lower: Tensor, upper: Tensor) -> Tensor:
        return (lower < 0) & (upper > 0)

    def choices(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return ((upper > -lower).to(lower.dtype),)

    def lines(self, lower: Tensor, upper: Tensor, choices: tuple[Tensor, ...]) -> Lines:
        fixed = torch.where(lower >= 0, 1.0, self.slope).to(lower.dtype)
        unstable = self.unstable(lower, upper)
        width = torch.where(unstable, upper - lower, 1.0)
        chord = torch.where(unstable, (upper - self.slope * lower) / width, fixed)
        below = torch.where(unstable, self.slope + (1 - self.slope) * choices[0], fixed)
        height = torch.where(unstable, upper * (1 - chord), 0.0)
        return Lines(below, torch.zeros_like(below), chord, height)


@dataclass(frozen=True, eq=False)
class Smooth(Activation):
    """A function with a bounded second derivative: tanh, sigmoid, GELU, SiLU.

    A line of any slope is moved down or up until it bounds the function. The function minus the line is compared on a
    grid of step h; between grid points it exceeds the grid's extremes by at most h²/8 times the largest |f''|.
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    curvature: float
    terms: int = SMOOTH_TERMS

    def apply(self, *x: Tensor) -> Tensor:
        return self.function(x[0])

    def magnitude(self, *x: Tensor) -> Tensor:
        # Every one of these functions satisfies |f(x)| ≤ 1 + |x|.
        return x[0] + 1

    def range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.zeros_like(lower)
        return self._intercept(lower, upper, flat, -1), self._intercept(lower, upper, flat, 1)

    def unstable(self, lower: Tensor, upper: Tensor) -> Tensor:
        return upper > lower

    def _slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest derivative on the grid."""
        values = [self.derivative(x) for x in self._grid(lower, upper)]
        least, most = values[0], values[0]
        for value in values[1:]:
            least, most = torch.minimum(least, value), torch.maximum(most, value)
        return least, most

    def _grid(self, lower: Tensor, upper: Tensor) -> list[Tensor]:
        return [lower + (upper - lower) * (i / (GRID - 1)) for i in range(GRID)]

    def choices(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        least, most = self._slopes(lower, upper)
        width, spread = upper - lower, most - least
        chord = (self.function(upper) - self.function(lower)) / torch.where(width > 0, width, 1.0)
        middle = torch.where(spread > 0, (chord - least) / torch.where(spread > 0, spread, 1.0), 0.0)
        return middle.clamp(0, 1), middle.clamp(0, 1)

    def lines(self, lower: Tensor, upper: Tensor, choices: tuple[Tensor, ...]) -> Lines:
        least, most = self._slopes(lower, upper)
        below, above = (least + (most - least) * choice for choice in choices)
        return Lines(below, self._intercept(lower, upper, below, -1), above, self._intercept(lower, upper, above, 1))

    def _intercept(self, lower: Tensor, upper: Tensor, slope: Tensor, sign: int) -> Tensor:
        """Return the intercept with which a line of this slope lies above (sign 1) or below (−1) the function."""
        with torch.no_grad():
            at, best = lower, sign * (self.function(lower) - slope * lower)
            for x in self._grid(lower, upper)[1:]:
                value = sign * (self.function(x) - slope * x)
                at, best = torch.where(value > best, x, at), torch.maximum(value, best)
        missed = ((upper - lower) / (GRID - 1)).square() / 8 * self.curvature
        return self.function(at) - slope * at + sign * missed * (1 + 1e-9)


def _gelu_slope(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    t = torch.tanh(inner)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t.square()) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x.square())


def _sigmoid_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s)


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s + x * s * (1 - s)


def tanh() -> Smooth:
    """Return the hyperbolic tangent; its largest second derivative is 4 / (3√3)."""
    return Smooth(torch.tanh, lambda x: 1 - torch.tanh(x).square(), 0.7699)


def sigmoid() -> Smooth:
    """Return the logistic function; its largest second derivative is 1 / (6√3)."""
    return Smooth(torch.sigmoid, _sigmoid_slope, 0.09623)


def gelu(approximate: str = "none") -> Smooth:
    """Return GELU or its approximation by tanh; the second derivative of GELU, φ(x)(2 − x²), is largest at 0."""
    if approximate == "tanh":
        return Smooth(_gelu_tanh, _gelu_tanh_slope, 0.81)
    return Smooth(F.gelu, _gelu_slope, 0.79789)


def silu() -> Smooth:
    """Return SiLU, x times the logistic function; its largest second derivative, 1/2, is at 0."""
    return Smooth(F.silu, _silu_slope, 0.5001)
