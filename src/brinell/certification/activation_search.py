"""Search for an adversarial example through activation patterns, guided by bounds.

Branch and bound visits the subproblems with the lowest bounds first. The minimiser of every subproblem's bound is a
start for steps along the sign of the margin's gradient; minimisers of different patterns are diverse starts near the
places that the bounds suspect. Reference: Zhang et al. 2022 (BaB-Attack).

Work is counted in batches of subproblems, never in seconds, so the outcome does not depend on the machine's load.
"""

import torch
from torch import Tensor

from brinell.certification.branch_and_bound import branch_and_bound, tightened
from brinell.certification.interval import Region
from brinell.certification.linear_bounds import crown_ranges, differences
from brinell.certification.network import TracedNetwork
from brinell.certification.trace import trace
from brinell.certification.undecided import reduce, reducible
from brinell.core.model import Classifier
from brinell.core.start_pool import ActivationSearch
from brinell.core.threat import Ball
from brinell.ops.rowwise import where

TIGHTENING = 12
# The first gradient step as a share of the box's width, and by what factor the next is shorter.
FIRST_STEP, SHRINK = 0.25, 0.8


@torch.no_grad()
def searched_points(search: ActivationSearch, model: Classifier, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """Return a misclassified point of the ball for every sample where the search finds one, else the clean point.

    Every sample is searched by itself. Raise a ModelError for a model that cannot be traced.
    """
    network = trace(model, tuple(x.shape[1:]))
    found = x.clone()
    for row in range(len(x)):
        index = torch.tensor([row], dtype=torch.long, device=x.device)
        point = _point(search, network, Region.around(x[index], ball.subset(index)), y[index])
        if point is not None:
            found[row] = point
    return found


def _point(search: ActivationSearch, network: TracedNetwork, region: Region, y: Tensor) -> Tensor | None:
    """Return a misclassified point of the region of one sample, in float32; None if the budget is used up."""
    ranges = crown_ranges(network, region)
    if reducible(network, ranges):
        return None
    others = torch.arange(network.classes, device=y.device)
    targets = others[others != y[0]]
    net = reduce(network, ranges, region, differences(y, network.classes)[0, targets], targets)
    net = tightened(net, TIGHTENING, lambda: False)[0]
    left = iter(range(search.batches))

    def improved(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        x = _descended(network, region.plain, x, int(y[0]), targets[target], search.steps)
        return x, network.values(x.float())[-1].argmax(1) != y[0]

    found = branch_and_bound(net, lambda: next(left, None) is None, improved).counterexample
    return None if found is None else found.float()


def _descended(network: TracedNetwork, region: Region, x: Tensor, y: int, target: Tensor, steps: int) -> Tensor:
    """Return the points with the smallest margins on the way of signed gradient steps of decreasing length."""
    low, high = region.box
    best, least = x, torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
    for step in range(steps + 1):
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            logits = network.values(free)[-1]
            margin = logits[:, y] - logits.gather(1, target[:, None])[:, 0]
            grad = torch.autograd.grad(margin.sum(), free)[0]
        margin = margin.detach()
        best, least = where(margin < least, x, best), torch.minimum(margin, least)
        x = (x - (high - low) * FIRST_STEP * SHRINK**step * grad.sign()).clamp(low, high)
    return best
