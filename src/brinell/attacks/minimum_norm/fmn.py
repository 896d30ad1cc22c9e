"""The fast minimum-norm attack: the radius shrinks at adversarial points and grows elsewhere."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from brinell.attacks._common import (
    FLAT,
    MinimumNormAttack,
    PointState,
    finite_loss,
    misclassified,
    schedule,
    start_in_box,
    unit,
)
from brinell.attacks._parameters import check_margin_loss, check_positive, check_whole
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L0, L1, L2, LINF, Norm, kept
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Mask, Points, Scalars

# Pintor et al. 2021: cosine schedules; steps end at a hundredth; the radius changes by 5 % at first, 0.1 % at last.
STEP_END, RATE, RATE_END = 0.01, 0.05, 0.001


@dataclass(frozen=True)
class FMNState(PointState):
    """State of FMN, per row: point, radius, smallest adversarial distance, and whether any point was adversarial.

    `span` is the distance to the farthest point that box and mask allow.
    """

    eps: Scalars
    span: Scalars
    best: Scalars
    found: Mask


@dataclass(frozen=True)
class FMN(MinimumNormAttack[FMNState]):
    """Gradient ascent on the margin inside a ball whose radius follows the distance to the decision boundary.

    Method: until the first success the radius is the distance to the linearised boundary; then it is multiplied by
    1 − γ at adversarial points and by 1 + γ elsewhere. The gradient step has Euclidean length α in every norm, and the
    point is projected on the ball. Cost per step: one forward and one backward pass; one more of each for the last
    point. Reference: Pintor et al. 2021, "Fast minimum-norm adversarial attacks through adaptive norm constraints".
    Different here: projections on ball ∩ box are exact. In L0 the coordinates with the largest gain on the linearised
    margin are kept, not those that changed most, and steps go to the faces of the box, since only the number of
    coordinates counts. Before the first success the radius exceeds the distance to the linearised boundary by γ;
    otherwise linear models would never be crossed. The loss "minimum-margin" attacks one target class at a time.
    Limits: a fixed Euclidean step is too long for tiny images and too short for huge ones. Try other values of `alpha`
    where distances have not converged.

    >>> FMN(steps=50).queries
    51
    """

    steps: int = 200
    alpha: float = 1.0
    loss: str = "margin"
    method = "fmn"
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1, L0)

    def __post_init__(self) -> None:
        check_margin_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(alpha=self.alpha)

    def init(self, p: Batch, ball: Ball) -> FMNState:
        """Return the state at the clean point or at the explicit start; the radius is 1 coordinate in L0, else inf."""
        wide = torch.full_like(ball.eps, torch.inf)
        eps = torch.ones_like(wide) if ball.norm.counts else wide
        return FMNState(
            torch.zeros_like(p.y), start_in_box(p, ball), eps, ball.span(p.x), wide, torch.zeros_like(p.y).bool()
        )

    def step(self, s: FMNState, a: Response, p: Batch, ball: Ball) -> FMNState:
        g, size, hit = ball.masked(a.gradient), ball.norm.size(s.x - p.x), misclassified(a, p)
        s = replace(s, best=torch.where(hit, torch.minimum(s.best, size), s.best))
        rate = schedule("cosine", s.t, self.steps, RATE, RATE_END)
        if ball.norm.counts:
            eps = _count(s, hit, rate)
        else:
            eps = _radius(s, hit, rate, size + finite_loss(a).abs() / ball.norm.dual_size(g).clamp(min=FLAT))
        here = replace(ball, eps=torch.minimum(eps, s.span))
        alpha = rows(schedule("cosine", s.t, self.steps, self.alpha, self.alpha * STEP_END), g)
        if ball.norm.counts:
            x = _fewest(p, s.x + alpha * g.sign(), g, here)
        else:
            x = here.project(p.x, s.x + alpha * unit(g))
        return FMNState(s.t + 1, x, here.eps, s.span, s.best, s.found | hit)


def _radius(s: FMNState, hit: Mask, rate: Scalars, boundary: Scalars) -> Scalars:
    """Return the next radius: smaller after a success, else larger; before any success (1 + rate) · `boundary`."""
    missed = torch.where(s.found, s.eps, boundary) * (1 + rate)
    return torch.where(hit, torch.minimum(s.eps * (1 - rate), s.best), missed)


def _count(s: FMNState, hit: Mask, rate: Scalars) -> Scalars:
    """Return the next radius in L0: at least one coordinate fewer after a success, else at least one more; never 0."""
    fewer = torch.minimum(torch.minimum(s.eps - 1, (s.eps * (1 - rate)).floor()), s.best)
    more = torch.maximum(s.eps + 1, (s.eps * (1 + rate)).floor())
    return torch.where(hit, fewer, more).clamp(min=1)


def _fewest(p: Batch, x: Points, g: Points, ball: Ball) -> Points:
    """Return x with all but ⌊eps⌋ coordinates reset to clean; those that raise the linearised margin most are kept."""
    inside = x.clamp(*ball.bounds(p.x))
    gain = flat((inside - p.x) * g).double()
    return torch.where(kept(gain, ball.eps).view_as(x), inside, p.x)
