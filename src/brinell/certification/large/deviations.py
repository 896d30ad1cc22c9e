"""Ranges of a large network: how far every value can be from the value that the sample has there.

CROWN from every neuron back to the input costs hours for half a million neurons. Here the backward pass of a neuron
stops, once it has done its share of work, at an earlier node that all its paths cross; the range of that node is known.
A pass bounds deviations from the values of the sample. They are small, so it runs in float32 and is charged for its own
rounding errors. It covers only the part of an image that the neuron reads.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from brinell.certification.activations import Activation, Lines, Relu
from brinell.certification.interval import Ranges, Region, extend, start
from brinell.certification.large.patches import Patch, moved, units
from brinell.certification.network import TracedNetwork, activation
from brinell.certification.operations import Affine, Convolution, Linear, Scale, Sum
from brinell.certification.rounding import UNIT32, UNIT64, gamma

# Multiplications for all neurons of a node, after which their passes stop at the next node that all paths cross.
WORK = 4e12
# Sums of more terms are made in float64, because float32 proves little about them.
MOST = 2**21
# Neurons of one pass.
TOGETHER = 256


@dataclass(frozen=True, eq=False)
class Step:
    """One step of every pass: multiply by `factor`, if there is one, and go on at the nodes `inputs`.

    A coefficient a at the node costs |a|·charge: errors that enter there, and errors of the step itself.
    """

    charge: Tensor
    inputs: tuple[int, ...]
    factor: Tensor | None = None


class Deviations:
    """The ranges of one sample, node by node, and the steps of the passes that refine them."""

    def __init__(self, network: TracedNetwork, region: Region) -> None:
        self.network, self.region = network, region
        exact = region.x0.device.type != "cpu" or network.widest > MOST or not keeps_float32()
        self.passes = network if exact else network.single
        self.unit = UNIT64 if exact else UNIT32
        self.values = network.values(region.x0)
        self.ranges = start(network, region)
        self.readers = Counter(i for node in network.nodes for i in node.inputs)
        self.around = [self._around(0)]
        self.steps: dict[int, Step] = {}
        self.counted: set[int] = set()

    def add(self, refined: bool, expired: Callable[[], bool]) -> None:
        """Append the range of the next node."""
        extend(self.network, self.ranges)
        k = len(self.around)
        self.steps[k] = self._step(k)
        if refined:
            self._refine(k, expired)
        self.around.append(self._around(k))

    def _around(self, k: int) -> Tensor:
        """Return the largest deviation of the values of node k from those of the sample."""
        lower, upper, value = self.ranges.lower[k][0], self.ranges.upper[k][0], self.values[k][0]
        return torch.maximum(value - lower, upper - value) * (1 + 1e-12)

    def _step(self, k: int) -> Step:
        """Return the step at node k; steps that act element by element are made together with those before them."""
        node, noise = self.network.nodes[k], self.ranges.noise[k][0]
        around = [self.around[i] for i in node.inputs]
        own = gamma(int(torch.Size(node.shape).numel()) + len(self.network) + 16, self.unit)
        if isinstance(node.operation, Activation):
            factor, error = self._slope(k)
            charge = noise + error + own * factor.abs() * around[0]
        else:
            assert isinstance(node.operation, Affine)
            charge = noise + own * node.operation.absolute(*(v[None] for v in around))[0]
            if not isinstance(node.operation, Scale):
                return Step(charge, node.inputs)
            factor = node.operation.factor.expand(1, *node.shape)[0]
        (i,) = node.inputs
        if i == 0 or self.readers[i] > 1:
            return Step(charge, node.inputs, factor)
        before = self.steps[i]
        self.counted.add(i)
        charge = charge + factor.abs() * before.charge
        return (
            Step(charge, (i,), factor) if before.factor is None else Step(charge, before.inputs, factor * before.factor)
        )

    def _slope(self, k: int) -> tuple[Tensor, Tensor]:
        """Return one slope per element of an activation function, and the largest deviation of the rest.

        On its range, the function minus slope · z lies between two constants.
        """
        i, operation = self.network.nodes[k].inputs[0], activation(self.network.nodes[k])
        lower, upper = self.ranges.lower[i], self.ranges.upper[i]
        lines = _parallel(operation, lower, upper)
        slope = lines.upper_slope.float().double()
        below, above = (v - slope for v in (lines.lower_slope, lines.upper_slope))
        low = lines.lower_intercept + torch.minimum(below * lower, below * upper)
        high = lines.upper_intercept + torch.maximum(above * lower, above * upper)
        rest = self.values[k] - slope * self.values[i]
        return slope[0], torch.maximum(high - rest, rest - low)[0]

    def _refine(self, k: int, expired: Callable[[], bool]) -> None:
        """Tighten the range of node k by passes from all of its neurons."""
        value, shape = self.values[k][0], self.network.nodes[k].shape
        bound = torch.full_like(value, torch.inf).flatten()
        own, widest = self.steps[k].charge.flatten(), self.network.widest
        more = 1 + 2 * gamma(widest + len(self.network) + 16, self.unit)
        # Coefficients that underflow.
        rest = 1e-20 * (1 + max(float(v.max()) for v in self.around))
        for index, patch in units(shape, TOGETHER, value.to(self.passes.dtype)):
            if expired():
                break
            bound[index] = (own[index] + self._passed(k, patch).double()) * more + rest
        bound = torch.where(bound.isfinite(), bound, torch.inf).view_as(value)
        self.ranges.lower[k] = torch.maximum(self.ranges.lower[k], (value - bound)[None])
        self.ranges.upper[k] = torch.minimum(self.ranges.upper[k], (value + bound)[None])

    def _passed(self, m: int, patch: Patch) -> Tensor:
        """Return bounds on |Σ a·deviation| for functions of node m, without the errors that enter at m itself."""
        parts, spent = {m: patch}, 0.0
        limit = WORK / math.prod(self.network.nodes[m].shape)
        total = torch.zeros(len(patch.a), dtype=patch.a.dtype, device=patch.a.device)
        for k in range(m, 0, -1):
            if k not in parts:
                continue
            patch = parts.pop(k)
            if spent >= limit and not parts and k < m:
                return total + patch.cost(self.around[k])
            if k != m and k not in self.counted:
                total = total + patch.cost(self.steps[k].charge)
            step, operation = self.steps[k], self.passes.nodes[k].operation
            for i, part in zip(step.inputs, self._pulled(k, patch), strict=True):
                parts[i] = parts[i].plus(part) if i in parts else part
            if isinstance(operation, Convolution | Linear):
                spent += operation.weight.numel() * math.prod(patch.a.shape[2:])
        return total + self._at_input(parts[0]) if 0 in parts else total

    def _pulled(self, k: int, patch: Patch) -> tuple[Patch, ...]:
        """Return the coefficients on the inputs of a step."""
        step, operation, shapes = self.steps[k], self.passes.nodes[k].operation, self.network.shapes(k)
        if step.factor is not None:
            return (Patch(patch.a * patch.of(step.factor), patch.origin),)
        if isinstance(operation, Convolution) and len(operation.stride) == 2:
            return (moved(patch, operation, shapes[0]),)
        assert isinstance(operation, Affine)
        if isinstance(operation, Sum) and shapes[0] == shapes[1]:
            return (patch, Patch(operation.sign * patch.a, patch.origin))
        shape = self.network.nodes[k].shape
        whole = patch.spread((0,) * len(shape), shape)
        return tuple(Patch(a, (0,) * (a.ndim - 1)) for a in operation.transposed(whole, shapes))

    def _at_input(self, patch: Patch) -> Tensor:
        """Return the largest |a·(x - x0)| over the region, plus the errors of the input."""
        shape = self.network.nodes[0].shape
        a = patch.spread((0,) * len(shape), shape).double()
        region, s = self.region, len(a)
        eps, low, high = (v.expand(s, *v.shape[1:]) for v in (region.eps, region.low, region.high))
        ends = [-region.norm.least(part, eps, low, high) for part in (a, -a)]
        return torch.maximum(*ends) + Patch(a, (0,) * len(shape)).cost(self.ranges.noise[0][0])


def deviation_ranges(network: TracedNetwork, region: Region, expired: Callable[[], bool] = lambda: False) -> Ranges:
    """Return the ranges of all nodes, sample by sample.

    Once `expired`, the ranges of the remaining nodes are intervals.
    """
    refined = {_mixing(network, network.nodes[a].inputs[0]) for a in network.activations}
    found = []
    for index in torch.arange(len(region.x0), device=region.x0.device).split(1):
        sample = Deviations(network, region.rows(index))
        for k in range(1, len(network)):
            sample.add(k in refined, expired)
        found.append(sample.ranges)
    ends = ([getattr(r, name) for r in found] for name in ("lower", "upper", "noise"))
    return Ranges(*([torch.cat(same) for same in zip(*end, strict=True)] for end in ends))


def keeps_float32() -> bool:
    """Return whether products and convolutions on the CPU keep all bits of float32 at the settings of this process."""
    if torch.get_float32_matmul_precision() != "highest":
        return False
    image = torch.full((16, 64, 16, 16), 1 + 2.0**-12, dtype=torch.float32, device="cpu")
    weight = torch.eye(64, dtype=image.dtype, device=image.device)[:, :, None, None] * image[0, 0, 0, 0]
    return bool((F.conv_transpose2d(image, F.pad(weight, [1, 1, 1, 1]), padding=1) == 1 + 2.0**-11).all())


def _mixing(network: TracedNetwork, k: int) -> int:
    """Return the node before k, or k itself, after which only factors follow."""
    while isinstance(network.nodes[k].operation, Scale):
        k = network.nodes[k].inputs[0]
    return k


def _parallel(operation: Activation, lower: Tensor, upper: Tensor) -> Lines:
    """Return lines below and above the function that have the same slope, up to rounding."""
    lines = operation.lines(lower, upper, operation.choices(lower, upper))
    if isinstance(operation, Relu):
        choice = (lines.upper_slope - operation.slope) / max(1 - operation.slope, UNIT64)
        return operation.lines(lower, upper, (choice.clamp(0, 1),))
    return lines
