"""CROWN: bound a linear function of a node by a linear function of the input, propagated backwards through the network.

Reference: Zhang et al. 2018. Every step subtracts the rounding errors of its node (docs/design/certification.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.certification.activations import Lines
from brinell.certification.interval import Ranges, Region, extend, start
from brinell.certification.network import TracedNetwork, activation
from brinell.certification.operations import Affine, Input, Reshape, Scale

# Bytes of the largest tensor of coefficients.
MEMORY = 2**27
Choices = dict[int, tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound on each linear function, (b, s), and what it was made of.

    The bound is the minimum over the region of `at_input`·x, plus `constant`, minus `slack`, the sum of all rounding
    errors. `at_input` are the coefficients on the input, `at` those on the output of every activation function.
    """

    value: Tensor
    constant: Tensor
    slack: Tensor
    at_input: Tensor | None
    at: dict[int, Tensor]


def contract(a: Tensor, v: Tensor) -> Tensor:
    """Return Σ a·v for coefficients (b, s, *shape) and values (b, *shape) or (*shape,) that broadcast, as (b, s)."""
    if v.ndim < a.ndim - 1 or v.shape != (len(a), *a.shape[2:]):
        v = v.expand(len(a), *a.shape[2:])
    return (a.flatten(2) @ v.flatten(1)[:, :, None])[:, :, 0]


def all_lines(network: TracedNetwork, ranges: Ranges, choices: Choices | None = None) -> dict[int, Lines]:
    """Return the lines of the activation functions whose inputs have ranges."""
    known = (k for k in network.activations if network.nodes[k].inputs[0] < len(ranges.lower))
    return {k: lines_of(network, ranges, k, None if choices is None else choices[k]) for k in known}


def lines_of(network: TracedNetwork, ranges: Ranges, k: int, choices: tuple[Tensor, ...] | None = None) -> Lines:
    """Return the lines of the activation function at node k, by default with CROWN's choices."""
    node = network.nodes[k]
    lower, upper = ranges.lower[node.inputs[0]], ranges.upper[node.inputs[0]]
    operation = activation(node)
    return operation.lines(lower, upper, operation.choices(lower, upper) if choices is None else choices)


def backward(
    network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], region: Region, at: int, a: Tensor,
    *, through: bool = True, pushes: dict[int, Tensor] | None = None,
) -> Bound:  # fmt: skip
    """Return lower bounds on a·z, where z is the value of node `at`, for coefficients a of shape (b, s, *shape).

    Without `through`, the bound stops at activation functions and uses their ranges. `pushes` are coefficients, by
    node and of shape (b, *shape), that are added on the way: multipliers of constraints.
    """
    total = slack = torch.zeros(a.shape[:2], dtype=a.dtype, device=a.device)
    coefficients, seen = {at: a}, {}
    for k in range(at, 0, -1):
        if k not in coefficients:
            continue
        a, node = coefficients.pop(k), network.nodes[k]
        if pushes and k in pushes:
            a = a + pushes[k][:, None]
        slack = slack + contract(a.abs(), ranges.noise[k])
        if isinstance(node.operation, Affine):
            if node.operation.offset is not None:
                total = total + contract(a, node.operation.offset)
            flat_parts = node.operation.transposed(a.flatten(0, 1), network.shapes(k))
            parts = [p.unflatten(0, a.shape[:2]) for p in flat_parts]
        elif through:
            seen[k] = a
            gain, part = _relaxed(a, lines[k])
            total, parts = total + gain, [part]
        else:
            total = total + _by_ranges(a, ranges.lower[k], ranges.upper[k])
            continue
        for i, part in zip(node.inputs, parts, strict=True):
            coefficients[i] = coefficients[i] + part if i in coefficients else part
    if 0 not in coefficients:
        return Bound(total - slack, total, slack, None, seen)
    a = coefficients[0]
    slack = slack + contract(a.abs(), ranges.noise[0])
    return Bound(total - slack + region.least(a), total, slack, a, seen)


def _relaxed(a: Tensor, lines: Lines) -> tuple[Tensor, Tensor]:
    """Return the constant and the coefficients after replacing an activation function by its lines."""
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    gain = contract(positive, lines.lower_intercept) + contract(negative, lines.upper_intercept)
    return gain, positive * lines.lower_slope[:, None] + negative * lines.upper_slope[:, None]


def _by_ranges(a: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return contract(a.clamp(min=0), lower) + contract(a.clamp(max=0), upper)


def crown_ranges(network: TracedNetwork, region: Region) -> Ranges:
    """Return the ranges of all nodes, refined by CROWN wherever the input of an activation function is undecided."""
    ranges = start(network, region)
    lines: dict[int, Lines] = {}
    for k in range(1, len(network)):
        for a in network.activations:
            if network.nodes[a].inputs[0] == k - 1:
                lines[a] = lines_of(network, ranges, a)
        extend(network, ranges)
        if _refinable(network, region, k):
            for row in range(len(region.x0)):
                _refine(network, ranges, lines, region, k, row)
    return ranges


def _refinable(network: TracedNetwork, region: Region, k: int) -> bool:
    """Return whether node k is the input of an activation function and CROWN can improve on its interval."""
    read = any(network.nodes[a].inputs[0] == k for a in network.activations)
    return read and not (region.is_box and _interval_is_exact(network, k))


def _interval_is_exact(network: TracedNetwork, k: int) -> bool:
    """Return whether only one affine operation between the input and node k adds up several values."""
    mixing = 0
    while not isinstance(network.nodes[k].operation, Input):
        node = network.nodes[k]
        if not isinstance(node.operation, Affine) or len(node.inputs) > 1:
            return False
        mixing += not isinstance(node.operation, Scale | Reshape)
        k = node.inputs[0]
    return mixing <= 1


def _refine(network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], region: Region, k: int, row: int) -> None:
    """Tighten the range of node k for one sample at the elements where an activation function is not linear."""
    here = torch.tensor([row], dtype=torch.long, device=region.x0.device)
    lower, upper = ranges.lower[k], ranges.upper[k]
    readers = [activation(network.nodes[a]) for a in network.activations if network.nodes[a].inputs[0] == k]
    open_ = torch.stack([r.unstable(lower[row], upper[row]) for r in readers]).any(0).flatten().nonzero()[:, 0]
    if not len(open_):
        return
    mine = {a: Lines(*(v[here] for v in line)) for a, line in lines.items()}
    parts = ranges.rows(here), mine, region.rows(here), k
    for index in open_.split(max(1, MEMORY // (8 * network.widest))):
        a = torch.zeros(1, len(index), lower[row].numel(), dtype=lower.dtype, device=lower.device)
        a[0, torch.arange(len(index), device=a.device), index] = 1.0
        a = a.view(1, len(index), *lower.shape[1:])
        low = backward(network, *parts, a).value[0]
        high = -backward(network, *parts, -a).value[0]
        lower[row].view(-1)[index] = torch.maximum(lower[row].view(-1)[index], low)
        upper[row].view(-1)[index] = torch.minimum(upper[row].view(-1)[index], high)


def margins(
    network: TracedNetwork, ranges: Ranges, region: Region, y: Tensor, *, through: bool = True
) -> Tensor:  # fmt: skip
    """Return lower bounds on the true logit minus every other logit, (b, classes); inf for the true class."""
    a = differences(y, network.classes)
    lines = all_lines(network, ranges) if through else {}
    value = backward(network, ranges, lines, region, len(network) - 1, a, through=through).value
    return value.scatter(1, y[:, None], torch.inf)


def differences(y: Tensor, classes: int) -> Tensor:
    """Return, per sample and class, the coefficients of the true logit minus the logit of the class.

    >>> differences(torch.tensor([0]), 2).tolist()
    [[[0.0, 0.0], [1.0, -1.0]]]
    """
    unit = torch.eye(classes, dtype=torch.float64, device=y.device)
    return unit[y][:, None] - unit[None]
