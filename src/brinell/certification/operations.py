"""The affine operations of a network: value, magnitude, transpose, and how many roundings an output element has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...]
CONVOLUTIONS: dict[int, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    1: (F.conv1d, F.conv_transpose1d),
    2: (F.conv2d, F.conv_transpose2d),
    3: (F.conv3d, F.conv_transpose3d),
}


class Operation:
    """One operation of a network, on tensors with one row per point."""

    terms: int = 0
    """The largest number of roundings that one output element goes through; 0: the result is exact."""

    def apply(self, *x: Tensor) -> Tensor:
        """Return the value of the operation."""
        raise NotImplementedError

    def magnitude(self, *x: Tensor) -> Tensor:
        """Return a bound on the sum of the absolute values of all terms, given bounds on those of the inputs."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Input(Operation):
    """The input of the network."""


class Affine(Operation):
    """x ↦ Lx + b for one or more inputs."""

    offset: Tensor | None = None

    def apply(self, *x: Tensor) -> Tensor:
        y = self.linear(*x)
        return y if self.offset is None else y + self.offset

    def linear(self, *x: Tensor) -> Tensor:
        """Return Lx."""
        raise NotImplementedError

    def absolute(self, *x: Tensor) -> Tensor:
        """Return |L|x, for x ≥ 0."""
        raise NotImplementedError

    def magnitude(self, *x: Tensor) -> Tensor:
        y = self.absolute(*x)
        return y if self.offset is None else y + self.offset.abs()

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Return Lᵀa for each input; `shapes` are the shapes of one row of the inputs."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Linear(Affine):
    """A fully connected layer on the last dimension."""

    weight: Tensor
    offset: Tensor | None = None

    @property
    def terms(self) -> int:  # type: ignore[override]
        return self.weight.shape[1] + 1

    def linear(self, *x: Tensor) -> Tensor:
        return F.linear(x[0], self.weight)

    def absolute(self, *x: Tensor) -> Tensor:
        return F.linear(x[0], self.weight.abs())

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (a @ self.weight,)


@dataclass(frozen=True, eq=False)
class Convolution(Affine):
    """A convolution in 1, 2 or 3 dimensions with zero padding."""

    weight: Tensor
    offset: Tensor | None = None
    stride: Shape = (1, 1)
    padding: Shape = (0, 0)
    dilation: Shape = (1, 1)
    groups: int = 1

    @property
    def terms(self) -> int:  # type: ignore[override]
        return self.weight[0].numel() + 1

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        convolve = CONVOLUTIONS[len(self.stride)][0]
        return convolve(x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def linear(self, *x: Tensor) -> Tensor:
        return self._convolve(x[0], self.weight)

    def absolute(self, *x: Tensor) -> Tensor:
        return self._convolve(x[0], self.weight.abs())

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (self.pulled(a, self.padding, shapes[0][1:]),)

    def pulled(self, a: Tensor, padding: Shape, sizes: Shape) -> Tensor:
        """Return Lᵀa for this padding and inputs of these sizes."""
        if a.device.type == "cpu" and len(self.stride) == 2:
            # A matrix product and a sum over overlapping patches: in float64, twice as fast as the library's.
            parts = self.weight.view(self.groups, -1, self.weight[0].numel())
            if a.shape[2:].numel() == 1 and self.groups == 1:
                patches = (a.flatten(1) @ parts[0])[:, :, None]
            else:
                patches = (parts.transpose(1, 2) @ a.unflatten(1, (self.groups, -1)).flatten(3)).flatten(1, 2)
            return F.fold(patches, sizes, self.weight.shape[2:], self.dilation, padding, self.stride)
        ends = zip(sizes, a.shape[2:], strict=True)
        rest = tuple(self._rest(size, out, d, padding) for d, (size, out) in enumerate(ends))
        transpose = CONVOLUTIONS[len(self.stride)][1]
        return transpose(a, self.weight, None, self.stride, padding, rest, self.groups, self.dilation)

    def _rest(self, size: int, out: int, d: int, padding: Shape) -> int:
        """Return how many trailing input values of dimension d no output value reads beyond the padding."""
        reached = (out - 1) * self.stride[d] - 2 * padding[d] + self.dilation[d] * (self.weight.shape[2 + d] - 1)
        return size - reached - 1


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """x ↦ factor · x + offset, element by element: normalisation, batch normalisation, constants."""

    factor: Tensor
    offset: Tensor | None = None
    terms: int = 4
    inner: Tensor | None = None
    """What is subtracted and added again inside, such as the running mean: it adds to the magnitude."""

    def linear(self, *x: Tensor) -> Tensor:
        return x[0] * self.factor

    def absolute(self, *x: Tensor) -> Tensor:
        return x[0] * self.factor.abs()

    def magnitude(self, *x: Tensor) -> Tensor:
        y = super().magnitude(*x)
        return y if self.inner is None else y + self.inner.abs()

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (a * self.factor,)


@dataclass(frozen=True, eq=False)
class Mapping(Affine):
    """A linear function whose coefficients have one sign: average pooling, means, selections, permutations, padding."""

    function: Callable[[Tensor], Tensor] = torch.clone
    terms: int = 0

    def linear(self, *x: Tensor) -> Tensor:
        return self.function(x[0])

    def absolute(self, *x: Tensor) -> Tensor:
        return self.function(x[0]).abs()

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        origin = torch.zeros(len(a), *shapes[0], dtype=a.dtype, device=a.device)
        pull: Any = torch.func.vjp(self.function, origin)[1]
        return (pull(a)[0],)


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """Another shape of the same values."""

    shape: Shape = ()

    def linear(self, *x: Tensor) -> Tensor:
        return x[0].reshape(len(x[0]), *self.shape)

    def absolute(self, *x: Tensor) -> Tensor:
        return self.linear(*x)

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (a.reshape(len(a), *shapes[0]),)


@dataclass(frozen=True, eq=False)
class Sum(Affine):
    """The sum of two inputs, or with sign −1 their difference."""

    sign: int = 1
    terms: int = 1

    def linear(self, *x: Tensor) -> Tensor:
        return x[0] + self.sign * x[1]

    def absolute(self, *x: Tensor) -> Tensor:
        return x[0] + x[1]

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return tuple(_summed_to(part, shape) for part, shape in zip((a, self.sign * a), shapes, strict=True))


def _summed_to(a: Tensor, shape: Shape) -> Tensor:
    """Return a, summed over the dimensions along which an input of this shape was broadcast."""
    target = (len(a), *[1] * (a.ndim - 1 - len(shape)), *shape)
    wide = [d for d in range(1, a.ndim) if target[d] == 1 and a.shape[d] != 1]
    return (a.sum(wide, keepdim=True) if wide else a).reshape(len(a), *shape)


@dataclass(frozen=True, eq=False)
class Concatenation(Affine):
    """Inputs side by side along one dimension, counted with the rows."""

    dim: int = 1

    def linear(self, *x: Tensor) -> Tensor:
        return torch.cat(x, self.dim)

    def absolute(self, *x: Tensor) -> Tensor:
        return torch.cat(x, self.dim)

    def transposed(self, a: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = a.split([shape[self.dim - 1] for shape in shapes], self.dim)
        return parts
