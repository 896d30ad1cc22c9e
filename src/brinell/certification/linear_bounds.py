"""CROWN: bound a linear function of a node by a linear function of the input, propagated backwards through the network.

Reference: Zhang et al. 2018. Every step subtracts the rounding errors of its node (docs/design/certification.md).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.certification.activations import Lines
from brinell.certification.interval import Ranges, Region, extend, start
from brinell.certification.network import TracedNetwork, activation
from brinell.certification.operations import Affine, Input, Reshape, Scale
from brinell.certification.windows import largest, least, supports, windowed

# Bytes of the largest tensor of coefficients; on a CPU, one that stays in its cache is faster.
MEMORY, CACHE = 2**27, 2**22
Choices = dict[int, tuple[Tensor, ...]]
# Called between chunks of work. True ends the refinement of ranges; to end everything, it raises an exception.
Expired = Callable[[], bool]


def never() -> bool:
    """Set no time limit."""
    return False


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


def budget(device: torch.device) -> int:
    """Return the bytes of the largest tensor of coefficients on a device."""
    return CACHE if device.type == "cpu" else MEMORY


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
    *, through: bool = True, expired: Expired = never,
) -> Bound:  # fmt: skip
    """Return lower bounds on a·z, where z is the value of node `at`, for coefficients a of shape (b, s, *shape).

    Without `through`, the bound stops at activation functions and uses their ranges.
    """
    total = slack = torch.zeros(a.shape[:2], dtype=a.dtype, device=a.device)
    coefficients, seen = {at: a}, {}
    for k in range(at, 0, -1):
        if k not in coefficients:
            continue
        expired()
        a, node = coefficients.pop(k), network.nodes[k]
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


def crown_ranges(network: TracedNetwork, region: Region, expired: Expired = never) -> Ranges:
    """Return the ranges of all nodes, refined by CROWN wherever the input of an activation function is undecided.

    Once `expired`, the ranges of the remaining neurons are intervals.
    """
    ranges = start(network, region)
    lines: dict[int, Lines] = {}
    for k in range(1, len(network)):
        for a in network.activations:
            if network.nodes[a].inputs[0] == k - 1:
                lines[a] = lines_of(network, ranges, a)
        expired()
        extend(network, ranges)
        if _refinable(network, region, k):
            _refine(network, ranges, lines, region, k, expired)
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


def _refine(
    network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], region: Region, k: int, expired: Expired
) -> None:
    """Tighten the range of node k at the elements where an activation function is not linear."""
    lower, upper = (part[k].flatten(1) for part in (ranges.lower, ranges.upper))
    readers = [activation(network.nodes[a]) for a in network.activations if network.nodes[a].inputs[0] == k]
    loose = torch.stack([r.unstable(lower, upper) for r in readers]).any(0)
    most = budget(lower.device) // (16 * (largest(network, k) if supports(network, k) else network.widest))
    for group, index in _groups(loose, max(1, most)):
        parts = network, ranges.rows(group), {a: Lines(*(v[group] for v in line)) for a, line in lines.items()}
        for some in index.split(max(1, most // len(group)), 1):
            if expired():
                return
            low, high = neuron_bounds(*parts, region.rows(group), k, some)
            at = group[:, None], some
            lower[at], upper[at] = torch.maximum(lower[at], low), torch.minimum(upper[at], high)
    ranges.lower[k], ranges.upper[k] = (v.view_as(ranges.lower[k]) for v in (lower, upper))


def _groups(loose: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield groups of samples with about as many loose elements, at most `most` of them together, and their elements.

    A sample with fewer elements than others of its group has its first one several times.
    """
    counts = loose.sum(1)
    order = counts.sort(stable=True).indices
    order = order[counts[order] > 0]
    while len(order):
        together = counts[order] * torch.arange(1, len(order) + 1, device=order.device) <= most
        size = max(1, int(together.int().cumprod(0).sum()))
        group, order = order[:size], order[size:]
        found = loose[group].int().sort(dim=1, descending=True, stable=True).indices
        index = found[:, : int(counts[group[-1]])]
        known = torch.arange(index.shape[1], device=index.device) < counts[group][:, None]
        yield group, torch.where(known, index, index[:, :1])


def neuron_bounds(
    network: TracedNetwork, ranges: Ranges, lines: dict[int, Lines], region: Region, k: int, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds on the neurons `index`, (b, s), of node k."""
    if supports(network, k):
        window, at = windowed(network, ranges, lines, k, index)
        if at == 0:
            both = least(window, ranges, region)
            return both[:, 0], -both[:, 1]
        a = window.laid_out(network.nodes[at].shape)
        value = window.total.flatten(1) + backward(network, ranges, lines, region, at, a).value
    else:
        n = int(torch.Size(network.nodes[k].shape).numel())
        unit = torch.zeros(*index.shape, n, dtype=torch.float64, device=index.device).scatter_(
            2, index[:, :, None], 1.0
        )
        a = torch.cat([unit, -unit], 1).unflatten(2, network.nodes[k].shape)
        value = backward(network, ranges, lines, region, k, a).value
    s = index.shape[1]
    return value[:, :s], -value[:, s:]


def margins(
    network: TracedNetwork, ranges: Ranges, region: Region, y: Tensor, *, through: bool = True,
    expired: Expired = never,
) -> Tensor:  # fmt: skip
    """Return lower bounds on the true logit minus every other logit, (b, classes); inf for the true class."""
    a = differences(y, network.classes)
    lines = all_lines(network, ranges) if through else {}
    value = backward(network, ranges, lines, region, len(network) - 1, a, through=through, expired=expired).value
    return value.scatter(1, y[:, None], torch.inf)


def differences(y: Tensor, classes: int) -> Tensor:
    """Return, per sample and class, the coefficients of the true logit minus the logit of the class.

    >>> differences(torch.tensor([0]), 2).tolist()
    [[[0.0, 0.0], [1.0, -1.0]]]
    """
    unit = torch.eye(classes, dtype=torch.float64, device=y.device)
    return unit[y][:, None] - unit[None]
