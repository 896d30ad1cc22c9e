"""Branch and bound on the signs of undecided neurons, with optimised slopes and multipliers of the split constraints.

Reference: Wang et al. 2021 (beta-CROWN), Xu et al. 2021 (optimised slopes), Kotha et al. 2023 (ranges of neurons where
a margin is not positive). Bounds are computed in float64 with slack.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from brinell.certification.relaxation.bounds import Bounded, bound, columns, minimiser, relaxed
from brinell.certification.relaxation.slopes import Domains, RangeTable, optimise, roots
from brinell.certification.undecided import Undecided
from brinell.ops.rowwise import concat, take

# Subproblems per batch, and subproblems kept at the same time.
BATCH, MOST = 64, 20_000
# Steps per subproblem, at the root and below; a bound has as many passes as steps.
ROOT_STEPS, STEPS = 40, 6
# Neurons whose two children are bounded before one of them is chosen.
CANDIDATES = 8
# Ranges are tightened where a margin is at most this share of its bound at the root.
CEILING = 1e-3
# Keeps the score of a neuron that costs nothing above that of a split one.
TINY = 1e-8
# From the minimisers of bounds and the positions of their margins to points to try, and which are misclassified.
Candidates = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def tightened(net: Undecided, steps: int, expired: Callable[[], bool]) -> tuple[Undecided, int]:
    """Return the neurons with ranges tightened by optimised slopes, from the second layer on, and the passes."""
    lower, upper, passes = net.lower.clone(), net.upper.clone(), 0
    for depth, part in enumerate(net.layers):
        if depth == 0:
            continue
        rows, table = net.neurons.at(part), RangeTable.of(net)
        for sign, ends in ((1, lower), (-1, upper)):
            for index in torch.arange(part.start, part.stop, device=lower.device).split(BATCH * 4):
                if expired():
                    return net.with_ranges(lower, upper), passes
                own = rows.at(index - part.start).turned(sign)
                best, _, made = optimise(net, table, own, roots(net, len(index)), steps, depth)
                passes += made
                ends[index] = torch.maximum(sign * ends[index], best.value) * sign
        net = net.with_ranges(lower.clone(), upper.clone())
    return net, passes


@dataclass(eq=False)
class Searched:
    """What branch and bound proved: a lower bound on all margins, passes, why it stopped, a candidate point."""

    value: float
    passes: int
    stopped: str = ""
    counterexample: Tensor | None = None


class Queue:
    """Subproblems, the one with the lowest bound first."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, tuple[Tensor, ...]]] = []
        self.count = itertools.count()

    def __len__(self) -> int:
        return len(self.heap)

    def add(self, domains: Domains) -> None:
        """Add every row."""
        values = (getattr(domains, f.name).unbind(0) for f in fields(domains))
        for value, row in zip(domains.value.tolist(), zip(*values, strict=True), strict=True):
            heapq.heappush(self.heap, (value, next(self.count), row))

    def pop(self, most: int) -> Domains:
        """Remove and return the `most` subproblems with the lowest bounds."""
        found = [heapq.heappop(self.heap)[2] for _ in range(min(most, len(self.heap)))]
        return Domains(*(torch.stack(v) for v in zip(*found, strict=True)))

    @property
    def least(self) -> float:
        """The lowest bound."""
        return self.heap[0][0]


def branch_and_bound(net: Undecided, expired: Callable[[], bool], candidates: Candidates, most: int = MOST) -> Searched:
    """Split subproblems until every bound is positive, a point is misclassified, or the time is over."""
    table = RangeTable.of(net)
    fresh, kept, passes = optimise(net, table, net.margins, roots(net, len(net.targets)), ROOT_STEPS)
    # What is bounded below is only where the margin is at most this.
    ceiling = (fresh.value.abs() * CEILING).clamp(max=1)
    waiting, proved = Queue(), torch.inf
    while True:
        closed = fresh.value > 0
        proved = min([proved, *fresh.value[closed].tolist()])
        waiting.add(take(fresh, (~closed).nonzero()[:, 0]))
        if not len(waiting):
            return Searched(min(proved, float(ceiling.min())) if len(table.lower) > 1 else proved, passes)
        least = waiting.least
        wrong = _wrong(net, kept, fresh.target, candidates)
        if wrong is not None:
            return Searched(least, passes, "a counterexample was found", wrong)
        if expired():
            return Searched(least, passes, f"time limit, {len(waiting):,} subproblems open")
        if len(waiting) > most:
            return Searched(least, passes, f"memory, more than {most:,} subproblems open")
        domains, table, made = _narrowed(net, table, waiting.pop(BATCH), ceiling, expired)
        children = _split(net, table, domains)
        if children is None:
            return Searched(least, passes, "every neuron is split")
        passes += made
        fresh, kept, made = optimise(net, table, net.margins.at(children.target), children, STEPS)
        passes += made + 1


def _narrowed(
    net: Undecided, table: RangeTable, domains: Domains, ceiling: Tensor, expired: Callable[[], bool]
) -> tuple[Domains, RangeTable, int]:
    """Tighten the ranges of the last layer for every margin, where it is at most its ceiling, before the first split.

    A single layer gains less than its passes cost.
    """
    passes, place = 0, domains.place.clone()
    for row in (domains.sign == 0).all(1).nonzero()[:, 0] if len(net.layers) > 1 else ():
        if expired():
            break
        one = take(domains, row[None])
        lower, upper, made = _narrow(net, table, one, ceiling[one.target])
        place[row] = len(table.lower)
        table, passes = concat([table, RangeTable(lower, upper)]), passes + made
    return replace(domains, place=place), table, passes


def _narrow(net: Undecided, table: RangeTable, one: Domains, ceiling: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the ranges of one subproblem, those of the last layer tightened where the margin is at most `ceiling`."""
    lower, upper = (v[one.place].clone() for v in (table.lower, table.upper))
    part = net.layers[-1]
    index = part.start + ((lower < 0) & (upper > 0))[0, part].nonzero()[:, 0]
    if not len(index):
        return lower, upper, 0
    many = take(one, index.new_zeros(2 * len(index)))
    given = net.margins.at(many.target)
    rows, start = net.neurons.at(index), replace(many, value=torch.full_like(many.value, -torch.inf))
    best, _, made = optimise(
        net, table, concat([rows.turned(1), rows.turned(-1)]), start, STEPS, goal=torch.inf,
        given=replace(given, constant=given.constant - ceiling),
    )  # fmt: skip
    low, high = best.value.split(len(index))
    lower[0, index] = torch.maximum(lower[0, index], low)
    upper[0, index] = torch.minimum(upper[0, index], -high)
    return lower, upper, made


def _wrong(net: Undecided, kept: Bounded, target: Tensor, candidates: Candidates) -> Tensor | None:
    """Return a misclassified point among those that the minimisers of the bounds lead to, if there is one."""
    points = minimiser(net.region, kept.at_input).T.reshape(-1, *net.region.x0.shape[1:])
    x, misclassified = candidates(points, target)
    bad = misclassified.nonzero()[:, 0]
    return x[bad[0]] if len(bad) else None


def _split(net: Undecided, table: RangeTable, domains: Domains) -> Domains | None:
    """Return two children of every subproblem, with its bound; None if one has no neuron left to split."""
    if not net.count:
        return None
    lines = table.lines(net, domains).to(torch.float32)
    rows = columns(net.margins.at(domains.target)).to(torch.float32)
    slope, push = domains.slope.T.contiguous(), (domains.multiplier * domains.sign).T.contiguous()
    region = net.region.single
    now = bound(net.single, region, rows, lines, slope, push)
    z, h = relaxed(net.single, region, now, lines, slope)[1:]
    score = _scores(net, table, domains, now, z, h)
    if bool((score.amax(1) <= 0).any()):
        return None
    candidates = score.topk(min(CANDIDATES, net.count), 1).indices
    gains = []
    for neuron in candidates.T:
        slopes = torch.ones_like(now.value), net.slope[neuron].float()
        value = torch.stack(
            [bound(net.single, region, rows, lines.decided(neuron, s), slope, push).value for s in slopes]
        )
        gains.append(value.amin(0).clamp(max=0) + 0.1 * value.amax(0).clamp(max=0))
    gain = torch.where(score.gather(1, candidates) > 0, torch.stack(gains, 1), -torch.inf)
    chosen = candidates.gather(1, gain.argmax(1)[:, None]).repeat_interleave(2, 0)
    children = take(domains, torch.arange(len(domains), device=chosen.device).repeat_interleave(2))
    both = torch.tensor([1, -1], dtype=torch.int8, device=chosen.device).repeat(len(domains))[:, None]
    return replace(children, sign=children.sign.scatter(1, chosen, both))


def _scores(net: Undecided, table: RangeTable, domains: Domains, now: Bounded, z: Tensor, h: Tensor) -> Tensor:
    """Return how much each neuron's lines cost the bound; 0 for neurons that are split or decided.

    The cost is the difference between the neuron's function and its relaxed output h at the relaxed input z.
    """
    lower, upper = table.lower[domains.place], table.upper[domains.place]
    free = (lower < 0) & (upper > 0) & (domains.sign == 0)
    exact = z.clamp(min=0) + net.slope[:, None].float() * z.clamp(max=0)
    return ((now.at * (exact - h)).T.clamp(min=0) + TINY) * free
