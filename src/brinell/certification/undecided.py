"""The network around one sample, reduced to its undecided neurons.

In a region most neurons of a ReLU network are always on or always off, so they are linear. What remains are the
undecided neurons with inputs z = Xx + Hh + c ± slack, where x is the input and h are the outputs of earlier undecided
neurons, and margins of the same form. Branch and bound, integer programming and the search for adversarial examples
work on this.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from brinell.certification.activations import Lines, Relu
from brinell.certification.interval import Ranges, Region
from brinell.certification.linear_bounds import MEMORY, Bound, backward, lines_of
from brinell.certification.network import TracedNetwork, activation
from brinell.certification.relaxation.bounds import Rows, System
from brinell.certification.rounding import STEPS, UNIT64, gamma
from brinell.ops.rowwise import concat

# Bytes of the two matrices.
LARGEST = 2**30


@dataclass(frozen=True, eq=False)
class Undecided:
    """The undecided neurons of one sample, layer by layer, with their inputs, ranges and slopes, and the margins.

    `layers` are the positions of each layer's neurons. `targets` are the classes that the margins belong to.
    """

    region: Region
    layers: tuple[slice, ...]
    neurons: Rows
    lower: Tensor
    upper: Tensor
    slope: Tensor
    margins: Rows
    targets: Tensor

    @property
    def count(self) -> int:
        """The number of undecided neurons."""
        return len(self.lower)

    def with_ranges(self, lower: Tensor, upper: Tensor) -> "Undecided":
        """Return the same neurons with other ranges."""
        other = replace(self, lower=lower, upper=upper)
        # The layers do not depend on the ranges.
        vars(other).update({name: vars(self)[name] for name in ("double", "single") if name in vars(self)})
        return other

    @cached_property
    def double(self) -> System:
        """The layers in float64, for bounds that count."""
        return System(self.neurons, self.layers)

    @cached_property
    def single(self) -> System:
        """The layers in float32, for steps whose result is bounded again in float64."""
        return System(self.neurons.to(torch.float32), self.layers)

    def pattern(self, x: Tensor) -> Tensor:
        """Return which neurons are on at points x, (b, *shape) → (b, m)."""
        flat, out = x.flatten(1).double(), torch.zeros(len(x), self.count, dtype=torch.float64, device=x.device)
        on = torch.zeros_like(out, dtype=torch.bool)
        for part in self.layers:
            rows = self.neurons.at(part)
            z = flat @ rows.inputs.T + out @ rows.outputs.T + rows.constant
            on[:, part] = z > 0
            out[:, part] = torch.where(z > 0, z, self.slope[part] * z)
        return on


def reducible(network: TracedNetwork, ranges: Ranges) -> str:
    """Return why the network of one sample cannot be reduced to undecided neurons; empty if it can be."""
    if any(not isinstance(network.nodes[k].operation, Relu) for k in network.activations):
        return "only networks of ReLUs can be split"
    m = sum(int(_undecided(network, ranges, k).sum()) for k in network.activations)
    n = int(torch.Size(network.nodes[0].shape).numel())
    if 8 * m * (m + n) > LARGEST:
        return f"memory: {m:,} undecided neurons are too many to split"
    return ""


def _undecided(network: TracedNetwork, ranges: Ranges, k: int) -> Tensor:
    before = network.nodes[k].inputs[0]
    return activation(network.nodes[k]).unstable(ranges.lower[before], ranges.upper[before])[0].flatten()


def reduce(network: TracedNetwork, ranges: Ranges, region: Region, a: Tensor, targets: Tensor) -> Undecided:
    """Return the undecided neurons of one sample; `ranges` and `region` hold this sample alone.

    `a` are the coefficients of the margins on the logits, (t, classes), for the classes `targets`.
    """
    index = {k: _undecided(network, ranges, k).nonzero()[:, 0] for k in network.activations}
    kinks = [k for k in network.activations if len(index[k])]
    m = sum(len(index[k]) for k in kinks)
    lines = {k: _decided(lines_of(network, ranges, k), index[k]) for k in network.activations}
    found: list[Rows] = []
    layers, lower, upper, slope = [], [], [], []
    place: dict[int, slice] = {}
    for k in kinks:
        before = network.nodes[k].inputs[0]
        begin = sum(len(index[j]) for j in place)
        found.append(
            _rows(network, ranges, lines, region, before, _units(ranges.lower[before], index[k]), (index, place, m))
        )
        place[k] = slice(begin, begin + len(index[k]))
        layers.append(place[k])
        lower.append(ranges.lower[before].flatten()[index[k]])
        upper.append(ranges.upper[before].flatten()[index[k]])
        operation = activation(network.nodes[k])
        assert isinstance(operation, Relu)
        slope.append(torch.full_like(lower[-1], operation.slope))
    margins = _rows(network, ranges, lines, region, len(network) - 1, a[None], (index, place, m))
    empty = margins.constant[:0]
    neurons = concat(found) if found else margins.at(slice(0, 0))
    low, high, slopes = (torch.cat(v) if v else empty for v in (lower, upper, slope))
    sizes = region.box[1].abs().flatten(), torch.maximum(low.abs(), high.abs())
    return Undecided(
        region, tuple(layers), _charged(neurons, *sizes), low, high, slopes, _charged(margins, *sizes), targets
    )


def _decided(lines: Lines, index: Tensor) -> Lines:
    """Return lines that are zero at undecided neurons: their coefficients are read instead."""
    return Lines(*(v.flatten(1).index_fill(1, index, 0.0).view_as(v) for v in lines))


def _units(like: Tensor, index: Tensor) -> Tensor:
    a = torch.zeros(1, len(index), like[0].numel(), dtype=like.dtype, device=like.device)
    a[0, torch.arange(len(index), device=a.device), index] = 1.0
    return a.view(1, len(index), *like.shape[1:])


def _rows(
    network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], region: Region, at: int, a: Tensor,
    known: tuple[dict[int, Tensor], dict[int, slice], int],
) -> Rows:  # fmt: skip
    """Return linear functions of node `at` as functions of the input and of the undecided neurons."""
    step = max(1, MEMORY // (8 * network.widest))
    parts = [_read(backward(network, ranges, lines, region, at, part), *known) for part in a.split(step, 1)]
    return concat(parts)


def _read(bound: Bound, index: dict[int, Tensor], place: dict[int, slice], m: int) -> Rows:
    assert bound.at_input is not None
    inputs = bound.at_input[0].flatten(1)
    outputs = torch.zeros(len(inputs), m, dtype=inputs.dtype, device=inputs.device)
    for k, where in place.items():
        if k in bound.at:
            outputs[:, where] = bound.at[k][0].flatten(1)[:, index[k]]
    return Rows(inputs, outputs, bound.constant[0], bound.slack[0])


def _charged(rows: Rows, inputs: Tensor, outputs: Tensor) -> Rows:
    """Return the rows with the rounding of float64 sums over all their terms added to the slack."""
    terms = rows.inputs.shape[1] + rows.outputs.shape[1]
    size = rows.inputs.abs() @ inputs + rows.outputs.abs() @ outputs + rows.constant.abs()
    return replace(rows, slack=rows.slack * (1 + 1e-9) + 2 * gamma(2 * terms + STEPS, UNIT64) * size)
