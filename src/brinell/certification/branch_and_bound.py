"""Branch and bound on the signs of undecided neurons, with optimised slopes and multipliers of the split constraints.

Reference: Wang et al. 2021 (beta-CROWN), Xu et al. 2021 (optimised slopes). Bounds are computed in float64 with slack.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.certification.undecided import Rows, Undecided
from brinell.ops.rowwise import concat, take, where_rows

# Subproblems per batch, and subproblems kept at the same time.
BATCH, MOST = 64, 20_000
# Steps of Adam per subproblem, at the root and below, and their sizes; a bound has as many passes as steps.
ROOT_STEPS, STEPS = 40, 12
SIZE, MULTIPLIER_SIZE, DECAY = 0.25, 0.1, 0.97
# Neurons whose two children are bounded before one of them is chosen.
CANDIDATES = 6
TINY = 1e-8
# From the minimisers of bounds and the positions of their margins to points to try, and which are misclassified.
# A bound's value, and the slopes and multipliers that give it.
Choice = tuple[Tensor, Tensor, Tensor]
Candidates = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Domains:
    """Subproblems, one per row: the margin, the signs of split neurons (0: not split), slopes, multipliers, bound."""

    target: Tensor
    sign: Tensor
    slope: Tensor
    multiplier: Tensor
    value: Tensor

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, eq=False)
class Bounded:
    """Lower bounds of a batch, their coefficients on the input, and those on the output of every neuron."""

    value: Tensor
    at_input: Tensor
    at: Tensor


def bound(
    net: Undecided, rows: Rows, sign: Tensor, slope: Tensor, multiplier: Tensor, layers: int | None = None
) -> Bounded:
    """Return lower bounds on `rows`, one per row, where every neuron has the given sign, slope and multiplier.

    `layers` limits the neurons to the first layers.
    """
    lower = torch.where(sign > 0, net.lower.clamp(min=0), net.lower)
    upper = torch.where(sign < 0, net.upper.clamp(max=0), net.upper)
    lines = _lines(net, lower, upper, slope)
    total, at_input, at = rows.constant - rows.slack, rows.inputs, rows.outputs
    push = multiplier * sign
    for part in reversed(net.layers[:layers]):
        a, neurons, earlier = at[:, part], net.neurons.at(part), part.start
        positive, negative = a.clamp(min=0), a.clamp(max=0)
        total = total + (negative * lines[2][:, part]).sum(1)
        a = positive * lines[0][:, part] + negative * lines[1][:, part] - push[:, part]
        total = total + a @ neurons.constant - a.abs() @ neurons.slack
        at_input = at_input + a @ neurons.inputs
        if earlier:
            at = torch.cat([at[:, :earlier] + a @ neurons.outputs[:, :earlier], at[:, earlier:]], 1)
    shape = net.region.x0.shape[1:]
    return Bounded(total + net.region.least(at_input.view(1, -1, *shape))[0], at_input, at)


def _lines(net: Undecided, lower: Tensor, upper: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slopes below and above, and the heights above, of every neuron in every subproblem."""
    unstable = (lower < 0) & (upper > 0)
    fixed = torch.where(lower >= 0, 1.0, net.slope)
    chord = torch.where(unstable, (upper - net.slope * lower) / torch.where(unstable, upper - lower, 1.0), fixed)
    below = torch.where(unstable, net.slope + (1 - net.slope) * slope, fixed)
    return below, chord, torch.where(unstable, upper * (1 - chord), 0.0)


def optimise(
    net: Undecided, rows: Rows, domains: Domains, steps: int, layers: int | None = None, goal: float = 0.0
) -> tuple[Domains, Bounded, int]:
    """Improve slopes and multipliers by steps of Adam; return the best of each subproblem and the number of passes.

    Stops when every bound exceeds `goal`. The steps are made in float32: any slopes are sound. The bounds returned are
    those of float64.
    """
    first = bound(net, rows, domains.sign, domains.slope, domains.multiplier, layers)
    kept = replace(domains, value=torch.maximum(first.value, domains.value))
    if not net.count or bool((kept.value > goal).all()):
        return kept, first, 1
    single = net.single, rows.to(torch.float32), domains.sign.float()
    value, slope, multiplier = first.value.float(), domains.slope.float(), domains.multiplier.float()
    adam = Adam(SIZE, slope), Adam(SIZE * MULTIPLIER_SIZE, multiplier)
    best, made = (value, slope, multiplier), 1
    while made <= steps and not bool((best[0] > goal).all()):
        with torch.enable_grad():
            free = slope.detach().requires_grad_(), multiplier.detach().requires_grad_()
            value = bound(*single, *free, layers).value
            grads = torch.autograd.grad(value.sum(), free, allow_unused=True)
        best, made = _better(best, (value.detach(), slope, multiplier)), made + 1
        slope = adam[0].step(slope, grads[0]).clamp(0, 1)
        multiplier = adam[1].step(multiplier, grads[1]).clamp(min=0)
    value = bound(*single, slope, multiplier, layers).value
    best = _better(best, (value, slope, multiplier))
    last = bound(net, rows, domains.sign, best[1].double(), best[2].double(), layers)
    found = replace(domains, slope=best[1].double(), multiplier=best[2].double(), value=last.value)
    up = last.value > kept.value
    return where_rows(up, found, kept), where_rows(up, last, first), made + 2


class Adam:
    """Steps of Adam that increase a function, element by element (Kingma & Ba 2015), with a decaying size."""

    def __init__(self, size: float, like: Tensor) -> None:
        self.size, self.count = size, 0
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)

    def step(self, v: Tensor, grad: Tensor | None) -> Tensor:
        """Return v after one step; without a gradient, v itself."""
        if grad is None:
            return v
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.999 * self.second + 0.001 * grad.square()
        scale = (self.second / (1 - 0.999**self.count)).sqrt() + TINY
        moved = v + self.size * self.first / (1 - 0.9**self.count) / scale
        self.size *= DECAY
        return moved


def _better(best: Choice, now: Choice) -> Choice:
    """Return, per subproblem, the choice with the larger value."""
    up = now[0] > best[0]
    value, slope, multiplier = (
        torch.where(up.view(-1, *[1] * (v.ndim - 1)), v, w) for v, w in zip(now, best, strict=True)
    )
    return value, slope, multiplier


def roots(net: Undecided, count: int) -> Domains:
    """Return subproblems without splits, one for each of `count` functions, with CROWN's slopes."""
    shape, like = (count, net.count), net.lower
    slope = (net.upper > -net.lower).to(like.dtype).expand(shape)
    zero = torch.zeros(shape, dtype=like.dtype, device=like.device)
    value = torch.full((count,), -torch.inf, dtype=like.dtype, device=like.device)
    return Domains(torch.arange(count, device=like.device), zero, slope, zero, value)


def tightened(net: Undecided, steps: int, expired: Callable[[], bool]) -> tuple[Undecided, int]:
    """Return the neurons with ranges tightened by optimised slopes, from the second layer on, and the passes."""
    lower, upper, passes = net.lower.clone(), net.upper.clone(), 0
    for depth, part in enumerate(net.layers):
        if depth == 0:
            continue
        rows = net.neurons.at(part)
        for sign, ends in ((1, lower), (-1, upper)):
            for index in torch.arange(part.start, part.stop, device=lower.device).split(BATCH * 4):
                if expired():
                    return net.with_ranges(lower, upper), passes
                some = rows.at(index - part.start)
                turned = Rows(sign * some.inputs, sign * some.outputs, sign * some.constant, some.slack)
                best, _, made = optimise(net, turned, roots(net, len(index)), steps, depth)
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


def branch_and_bound(net: Undecided, expired: Callable[[], bool], candidates: Candidates, most: int = MOST) -> Searched:
    """Split subproblems until every bound is positive, a point is misclassified, or the time is over."""
    fresh, kept, passes = optimise(net, net.margins, roots(net, len(net.targets)), ROOT_STEPS)
    waiting, proved = take(fresh, fresh.target[:0]), torch.inf
    while True:
        closed = fresh.value > 0
        proved = min([proved, *fresh.value[closed].tolist()])
        waiting = concat([waiting, take(fresh, ~closed)])
        if not len(waiting):
            return Searched(proved, passes)
        least = float(waiting.value.min())
        wrong = _wrong(net, kept, fresh.target, candidates)
        if wrong is not None:
            return Searched(least, passes, "a counterexample was found", wrong)
        if expired():
            return Searched(least, passes, f"time limit, {len(waiting):,} subproblems open")
        if len(waiting) > most:
            return Searched(least, passes, f"memory, more than {most:,} subproblems open")
        order = waiting.value.argsort()
        chosen, waiting = take(waiting, order[:BATCH]), take(waiting, order[BATCH:])
        children = _split(net, chosen)
        if children is None:
            return Searched(least, passes, "every neuron is split")
        fresh, kept, made = optimise(net, net.margins.at(children.target), children, STEPS)
        passes += made + 1


def _wrong(net: Undecided, kept: Bounded, target: Tensor, candidates: Candidates) -> Tensor | None:
    """Return a misclassified point among those that the minimisers of the bounds lead to, if there is one."""
    first = torch.zeros(len(kept.value), dtype=torch.long, device=kept.value.device)
    minimiser = net.region.rows(first).minimiser(kept.at_input.view(-1, *net.region.x0.shape[1:]))
    x, misclassified = candidates(minimiser, target)
    bad = misclassified.nonzero()[:, 0]
    return x[bad[0]] if len(bad) else None


def _split(net: Undecided, domains: Domains) -> Domains | None:
    """Return two children of every subproblem, with its bound; None if one has no neuron left to split."""
    rows = net.margins.at(domains.target)
    now = bound(net, rows, domains.sign, domains.slope, domains.multiplier)
    score = _scores(net, domains, now)
    if not net.count or bool((score.amax(1) <= 0).any()):
        return None
    few = min(CANDIDATES, net.count)
    candidate = score.topk(few, 1).indices
    index = torch.arange(len(domains), device=candidate.device).repeat_interleave(2 * few)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64, device=candidate.device).repeat(len(domains) * few)
    tried = take(domains, index)
    changed = tried.sign.scatter(1, candidate.flatten().repeat_interleave(2)[:, None], sign[:, None])
    sign, slope, multiplier = (v.float() for v in (changed, tried.slope, tried.multiplier))
    value = bound(net.single, rows.at(index).to(torch.float32), sign, slope, multiplier).value.view(-1, few, 2)
    gain = value.amin(2).clamp(max=0) + 0.1 * value.amax(2).clamp(max=0)
    gain = torch.where(score.gather(1, candidate) > 0, gain, -torch.inf)
    chosen = (torch.arange(len(domains), device=gain.device) * few + gain.argmax(1))[:, None] * 2
    both = torch.cat([chosen, chosen + 1], 1).flatten()
    children = take(tried, both)
    return replace(children, sign=changed[both])


def _scores(net: Undecided, domains: Domains, now: Bounded) -> Tensor:
    """Return how much each neuron's lines may cost the bound; 0 for neurons that are split."""
    unstable = (net.lower < 0) & (net.upper > 0)
    height = torch.where(unstable, net.upper * -net.lower / torch.where(unstable, net.upper - net.lower, 1.0), 0.0)
    below = torch.minimum(net.upper, -net.lower) / 2
    score = -now.at.clamp(max=0) * height + now.at.clamp(min=0) * below
    return torch.where((domains.sign == 0) & unstable, score + TINY, 0.0)
