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
from brinell.ops.rowwise import flat, rows, where

TIGHTENING = 12
# The first gradient step as a share of the box's width; steps fall to zero like a parabola.
FIRST_STEP, MOMENTUM, TINY = 0.25, 0.75, 1e-30


@torch.no_grad()
def searched_points(search: ActivationSearch, model: Classifier, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """Return a misclassified point of the ball for every sample where the search finds one, else the clean point.

    Every sample is searched by itself. Raise a ModelError for a model that cannot be traced.
    """
    network = trace(model, tuple(x.shape[1:]))
    found = x.clone()
    for row in range(len(x)):
        index = torch.tensor([row], dtype=torch.long, device=x.device)
        point = _point(search, network, x[index], y[index], ball.subset(index))
        if point is not None:
            found[row] = point
    return found


def _point(search: ActivationSearch, network: TracedNetwork, x0: Tensor, y: Tensor, ball: Ball) -> Tensor | None:
    """Return a misclassified point of the ball around one sample; None if the budget is used up."""
    region = Region.around(x0, ball)
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
        # float32 rounds points of the box out of the ball; the projection moves them back.
        x = ball.subset(torch.zeros_like(target)).project(x0.expand_as(x), x)
        wrong = (n.values(x)[-1].argmax(1) != y[0] for n in (network, network.single))
        return x, torch.stack(list(wrong)).all(0)

    found = branch_and_bound(net, lambda: next(left, None) is None, improved).counterexample
    return found


def _descended(network: TracedNetwork, region: Region, x: Tensor, y: int, target: Tensor, steps: int) -> Tensor:
    """Return the points with the smallest margins on the way of signed steps along gradients with momentum."""
    low, high = region.single.box
    x, momentum = x.float(), torch.zeros_like(x, dtype=torch.float32)
    best, least = x, torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
    for step in range(steps + 1):
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            logits = network.single.values(free)[-1]
            margin = logits[:, y] - logits.gather(1, target[:, None])[:, 0]
            grad = torch.autograd.grad(margin.sum(), free)[0]
        margin = margin.detach()
        best, least = where(margin < least, x, best), torch.minimum(margin, least)
        momentum = MOMENTUM * momentum + grad / rows(flat(grad).abs().mean(1) + TINY, grad)
        x = (x - (high - low) * FIRST_STEP * (1 - step / (steps + 1)) ** 2 * momentum.sign()).clamp(low, high)
    return best
