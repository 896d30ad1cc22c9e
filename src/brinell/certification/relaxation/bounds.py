"""Lower bounds on many subproblems of a network's undecided neurons at once, and their gradients.

Every subproblem is a column. A bound moves coefficients from the margin back to the input; its gradient is the forward
pass of the relaxed network at the minimiser of the bound.
"""

import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from brinell.certification.interval import Region

# A matrix with a smaller share of numbers other than zero is stored as such.
DENSE = 0.3


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear functions x·inputs + h·outputs + constant ± slack of the input x and the undecided neurons' outputs h."""

    inputs: Tensor
    outputs: Tensor
    constant: Tensor
    slack: Tensor

    def at(self, index: Tensor | slice) -> "Rows":
        """Return the functions at `index`."""
        return Rows(self.inputs[index], self.outputs[index], self.constant[index], self.slack[index])

    def to(self, dtype: torch.dtype) -> "Rows":
        """Return the functions in another precision."""
        return Rows(self.inputs.to(dtype), self.outputs.to(dtype), self.constant.to(dtype), self.slack.to(dtype))

    def turned(self, sign: int) -> "Rows":
        """Return the functions times 1 or −1."""
        return Rows(sign * self.inputs, sign * self.outputs, sign * self.constant, self.slack)


class Matrix:
    """A matrix and its transpose, stored without zeros if most numbers are zero and the device is a CPU."""

    def __init__(self, dense: Tensor) -> None:
        few = int(dense.count_nonzero()) < DENSE * dense.numel()
        both = dense, dense.T.contiguous()
        if few and dense.device.type == "cpu" and torch.backends.mkl.is_available():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch calls the format beta.
                both = both[0].to_sparse_csr(), both[1].to_sparse_csr()
        self.direct, self.transposed = both


@dataclass(frozen=True, eq=False)
class UndecidedLayer:
    """The undecided neurons of one layer: their positions, and their inputs as functions of x and earlier outputs."""

    part: slice
    inputs: Matrix
    outputs: Matrix | None
    constant: Tensor
    slack: Tensor


class System:
    """The layers of undecided neurons around one sample, in one precision."""

    def __init__(self, neurons: Rows, layers: tuple[slice, ...]) -> None:
        self.layers = []
        for part in layers:
            rows = neurons.at(part)
            outputs = Matrix(rows.outputs[:, : part.start].contiguous()) if part.start else None
            self.layers.append(
                UndecidedLayer(part, Matrix(rows.inputs), outputs, rows.constant[:, None], rows.slack[:, None])
            )


class LineColumns(NamedTuple):
    """Lines of every neuron (row) in every subproblem (column).

    The slope below is `fixed` plus `free` times a choice in [0, 1]; the line above has a slope and a height at 0.
    """

    fixed: Tensor
    free: Tensor
    above: Tensor
    height: Tensor

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, slope: Tensor) -> "LineColumns":
        """Return the lines on the intervals of the neurons; `slope` is that below zero, as a column."""
        unstable = ((lower < 0) & (upper > 0)).to(lower.dtype)
        fixed = slope + (1 - slope) * (lower >= 0)
        width = unstable * (upper - lower) + (1 - unstable)
        chord = unstable * (upper - slope * lower) / width + (1 - unstable) * fixed
        return cls(fixed, unstable * (1 - slope), chord, unstable * upper * (1 - chord))

    def to(self, dtype: torch.dtype) -> "LineColumns":
        """Return the lines in another precision."""
        return LineColumns(*(v.to(dtype) for v in self))

    def decided(self, neuron: Tensor, slope: Tensor) -> "LineColumns":
        """Return the lines where one neuron of every subproblem is linear, with these slopes."""
        values = zip(self, (slope, 0 * slope, slope, 0 * slope), strict=True)
        return LineColumns(*(v.scatter(0, neuron[None], new[None]) for v, new in values))


@dataclass(frozen=True, eq=False)
class Bounded:
    """Lower bounds, their coefficients on the input, on the output and on the input of every neuron, in columns."""

    value: Tensor
    at_input: Tensor
    at: Tensor
    weight: Tensor


def bound(
    system: System,
    region: Region,
    rows: Rows,
    lines: LineColumns,
    choice: Tensor,
    push: Tensor,
    layers: int | None = None,
) -> Bounded:
    """Return lower bounds on `rows`, one per column, whatever the choices in [0, 1] are.

    `push` is what the constraints of split neurons take off their coefficients. `layers` limits the neurons to the
    first layers.
    """
    total, at_input, at = rows.constant - rows.slack, rows.inputs, rows.outputs.clone()
    weight = torch.zeros_like(at)
    for layer in reversed(system.layers[:layers]):
        part = layer.part
        positive = at[part].clamp(min=0)
        negative = at[part] - positive
        below = lines.free[part] * choice[part] + lines.fixed[part]
        a = positive * below + negative * lines.above[part] - push[part]
        total = total + (negative * lines.height[part] + a * layer.constant - a.abs() * layer.slack).sum(0)
        at_input = at_input + layer.inputs.transposed @ a
        if layer.outputs is not None:
            at[: part.start] += layer.outputs.transposed @ a
        weight[part] = a
    return Bounded(total + _least(region, at_input), at_input, at, weight)


def _least(region: Region, a: Tensor) -> Tensor:
    """Return the minimum of a·x over the region for every column."""
    if region.is_box:
        low, high = (end.view(1, -1) for end in region.box)
        return (low @ a.clamp(min=0) + high @ a.clamp(max=0))[0]
    return region.least(a.T.reshape(1, a.shape[1], *region.x0.shape[1:]))[0]


def minimiser(region: Region, a: Tensor) -> Tensor:
    """Return the point of the region with the smallest a·x for every column, as columns."""
    first = torch.zeros(a.shape[1], dtype=torch.long, device=a.device)
    return region.rows(first).minimiser(a.T.reshape(-1, *region.x0.shape[1:])).flatten(1).T


def relaxed(
    system: System, region: Region, found: Bounded, lines: LineColumns, choice: Tensor, layers: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the relaxed network has a bound: the point x, and every neuron's input and output, in columns.

    The inputs of neurons are the derivatives of the bound by `weight`.
    """
    if region.is_box:
        low, high = (end.view(-1, 1) for end in region.box)
        x = torch.gt(found.at_input, 0, out=torch.empty_like(found.at_input)) * (low - high) + high
    else:
        x = minimiser(region, found.at_input).contiguous()
    z, h = torch.zeros_like(found.at), torch.zeros_like(found.at)
    for layer in system.layers[:layers]:
        part = layer.part
        v = layer.inputs.direct @ x + layer.constant - found.weight[part].sign() * layer.slack
        if layer.outputs is not None:
            v += layer.outputs.direct @ h[: part.start]
        on = torch.gt(found.at[part], 0, out=torch.empty_like(v))
        below = (lines.free[part] * choice[part] + lines.fixed[part]) * v
        above = lines.above[part] * v + lines.height[part]
        z[part], h[part] = v, above + on * (below - above)
    return x, z, h


def columns(rows: Rows) -> Rows:
    """Return functions with one column each."""
    return replace(rows, inputs=rows.inputs.T.contiguous(), outputs=rows.outputs.T.contiguous())
