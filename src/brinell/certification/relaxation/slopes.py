"""Subproblems of branch and bound, and the slopes and multipliers that give them their best bounds.

Reference: Xu et al. 2021 (optimised slopes), Wang et al. 2021 (multipliers of split constraints).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.certification.relaxation.bounds import Bounded, LineColumns, Rows, bound, columns, relaxed
from brinell.certification.undecided import Undecided

# Sizes of the steps of slopes, without and with splits, and of multipliers, and their decay.
SIZE, WARM_SIZE, MULTIPLIER_SIZE, DECAY = 0.25, 0.1, 0.05, 0.97
TINY = 1e-8


@dataclass(frozen=True, eq=False)
class Domains:
    """Subproblems, one per row: the margin, the row of its ranges, signs of split neurons, slopes, multipliers, bound.

    A sign of 0 means that the neuron is not split.
    """

    target: Tensor
    place: Tensor
    sign: Tensor
    slope: Tensor
    multiplier: Tensor
    value: Tensor

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, eq=False)
class RangeTable:
    """Ranges of all undecided neurons, one row per set of ranges."""

    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, net: Undecided) -> "RangeTable":
        """Return the ranges of a network as the only row."""
        return cls(net.lower[None], net.upper[None])

    def lines(self, net: Undecided, domains: Domains) -> LineColumns:
        """Return the lines of subproblems."""
        lower, upper, sign = self.lower[domains.place], self.upper[domains.place], domains.sign
        lower, upper = lower * (sign <= 0), upper * (sign >= 0)
        return LineColumns.between(lower.T.contiguous(), upper.T.contiguous(), net.slope[:, None])


def optimise(
    net: Undecided, table: RangeTable, rows: Rows, domains: Domains, steps: int, layers: int | None = None,
    goal: float = 0.0, given: Rows | None = None,
) -> tuple[Domains, Bounded, int]:  # fmt: skip
    """Improve slopes and multipliers by steps of Adam; return the best of each subproblem and the number of passes.

    Stops when every bound exceeds `goal`. The steps are made in float32: any slopes are sound. The bounds returned are
    those of float64. `given` are functions, one per row, and the bounds hold where they are not positive.
    """
    exact, rows = table.lines(net, domains), columns(rows)
    lines, single = exact.to(torch.float32), rows.to(torch.float32)
    slope, sign = domains.slope.T.contiguous(), domains.sign.T
    split = (sign != 0).any(1).nonzero()[:, 0]
    signs, multiplier = sign[split].float(), domains.multiplier.T[split]
    weight = torch.zeros_like(single.constant)
    given = None if given is None else columns(given)
    condition = None if given is None else given.to(torch.float32)
    region, push = net.region.single, torch.zeros_like(slope)
    ascents = Adam(WARM_SIZE if len(split) else SIZE, slope), Adam(MULTIPLIER_SIZE, multiplier), Adam(SIZE, weight)
    best: list[Tensor] = []
    for made in range(steps + 1):
        push[split] = multiplier * signs
        both = single if condition is None else _sum(single, condition, weight)
        found = bound(net.single, region, both, lines, slope, push, layers)
        now = [found.value, slope, multiplier, weight]
        best = _better(best, now) if best else [v.clone() for v in now]
        if made == steps or bool((best[0] > goal).all()):
            break
        x, z, h = relaxed(net.single, region, found, lines, slope, layers)
        ascents[0].step(slope, found.at.clamp(min=0) * lines.free * z).clamp_(0, 1)
        if len(split):
            ascents[1].step(multiplier, -signs * z[split]).clamp_(min=0)
        if condition is not None:
            reached = (condition.inputs * x).sum(0) + (condition.outputs * h).sum(0)
            ascents[2].step(weight, reached + condition.constant - condition.slack).clamp_(min=0)
    full = torch.zeros_like(slope).index_copy_(0, split, best[2])
    push = full.double() * sign
    both = rows if given is None else _sum(rows, given, best[3].double())
    last = bound(net.double, net.region, both, exact, best[1].double(), push, layers)
    value = torch.maximum(last.value, domains.value)
    return replace(domains, slope=best[1].T, multiplier=full.T, value=value), last, made + 2


def _sum(rows: Rows, given: Rows, weight: Tensor) -> Rows:
    """Return the functions `rows` plus `given` times a weight, in columns."""
    return Rows(
        rows.inputs + given.inputs * weight, rows.outputs + given.outputs * weight,
        rows.constant + given.constant * weight, rows.slack + given.slack * weight,
    )  # fmt: skip


class Adam:
    """Steps of Adam that increase a function, element by element (Kingma & Ba 2015), with a decaying size."""

    def __init__(self, size: float, like: Tensor) -> None:
        self.size, self.count = size, 0
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)

    def step(self, v: Tensor, grad: Tensor) -> Tensor:
        """Move v by one step, in place, and return it."""
        self.count += 1
        self.first.lerp_(grad, 0.1)
        self.second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        scale = (self.second / (1 - 0.999**self.count)).sqrt_().add_(TINY)
        v.addcdiv_(self.first, scale, value=self.size / (1 - 0.9**self.count))
        self.size *= DECAY
        return v


def _better(best: list[Tensor], now: list[Tensor]) -> list[Tensor]:
    """Return, per column, the choice with the larger value; the tensors of `best` are overwritten."""
    up = (now[0] > best[0]).to(now[0].dtype)
    return [b.lerp_(n, up) for b, n in zip(best, now, strict=True)]


def roots(net: Undecided, count: int) -> Domains:
    """Return subproblems without splits, one for each of `count` functions, with CROWN's slopes."""
    shape, device = (count, net.count), net.lower.device
    slope = (net.upper > -net.lower).float().expand(shape)
    zero, none = (
        torch.zeros(shape, dtype=torch.float32, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
    )
    value = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
    return Domains(torch.arange(count, device=device), none, zero.to(torch.int8), slope, zero, value)
