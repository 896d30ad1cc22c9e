"""Fast minimum-norm attack: the radius shrinks while the point is adversarial and grows while it is not."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import FLAT, ahead, aimed, begin, cosine, fooled, free, unit
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L0, L1, L2, LINF, Norm, kept
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Labels, Mask, Points, Scalars

# Pintor et al. 2021: both schedules are cosines, the steps end at a hundredth, the radius changes by 5 % down to 0.1 %.
STEP_END, RATE, RATE_END = 0.01, 0.05, 0.001


@dataclass(frozen=True)
class State(AttackState):
    """The iterate, the current radius, the smallest adversarial distance seen, and whether there was one."""

    t: Labels
    x: Points
    eps: Scalars
    best: Scalars
    found: Mask


@dataclass(frozen=True)
class FMN(Attack[State]):
    """Ascends the margin inside a ball whose radius follows the boundary; the engine keeps the nearest adversarial.

    Method: until the first success the radius is the distance to the linearised boundary; then it is multiplied by
    1 − γ at adversarial points and by 1 + γ elsewhere. The gradient step has Euclidean length α in every norm, and the
    point is projected on the ball. Cost per step: one forward, one backward; one more of each for the last point.
    Reference: Pintor et al. 2021, "Fast minimum-norm adversarial attacks through adaptive norm constraints". Different
    here: projections are on ball ∩ box, exactly. L0: coordinates are kept by what they gain on the linearised margin,
    not by their size, and steps go towards the faces of the box, since in a count only reaching them pays. Before the
    first success the radius goes beyond the linearised boundary by γ, or a linear model would never be left. With the
    loss "minimum-margin" it aims at one class at a time.
    Limits: a fixed Euclidean step is too long for tiny images and too short for huge ones; check `alpha` where
    distances look unsettled.

    >>> FMN(steps=50).queries
    51
    """

    steps: int = 200
    alpha: float = 1.0
    loss: str = "margin"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1, L0)

    def __post_init__(self) -> None:
        _check.margins(self.loss)
        _check.positive(steps=self.steps, alpha=self.alpha)

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "fmn" + aimed(self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told; in L0 the radius starts at one coordinate."""
        wide = torch.full_like(ball.eps, torch.inf)
        eps = torch.ones_like(wide) if ball.norm.counts else wide
        return State(torch.zeros_like(p.y), begin(p, ball), eps, wide, torch.zeros_like(p.y, dtype=torch.bool))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Adapt the radius, take a step, project."""
        g, size, hit = free(a.gradient, ball), ball.norm.size(s.x - p.x), fooled(a, p)
        s = replace(s, best=torch.where(hit, torch.minimum(s.best, size), s.best))
        rate = cosine(s.t, self.steps, RATE, RATE_END)
        if ball.norm.counts:
            eps = _count(s, hit, rate)
        else:
            eps = _radius(s, hit, rate, size + ahead(a).abs() / ball.norm.dual_size(g).clamp(min=FLAT))
        here = replace(ball, eps=torch.minimum(eps, ball.span(p.x)))
        alpha = rows(cosine(s.t, self.steps, self.alpha, self.alpha * STEP_END), g)
        if ball.norm.counts:
            x = _fewest(p, s.x + alpha * g.sign(), g, here)
        else:
            x = here.project(p.x, s.x + alpha * unit(g))
        return State(s.t + 1, x, here.eps, s.best, s.found | hit)


def _radius(s: State, hit: Mask, rate: Scalars, boundary: Scalars) -> Scalars:
    """Smaller after a success; elsewhere larger, and before the first one as far as the linearised boundary."""
    missed = torch.where(s.found, s.eps, boundary) * (1 + rate)
    return torch.where(hit, torch.minimum(s.eps * (1 - rate), s.best), missed)


def _count(s: State, hit: Mask, rate: Scalars) -> Scalars:
    """The same in whole numbers: at least one coordinate fewer, or one more."""
    fewer = torch.minimum(torch.minimum(s.eps - 1, (s.eps * (1 - rate)).floor()), s.best)
    more = torch.maximum(s.eps + 1, (s.eps * (1 + rate)).floor())
    return torch.where(hit, fewer, more).clamp(min=1)


def _fewest(p: Batch, x: Points, g: Points, ball: Ball) -> Points:
    """The coordinates of x that gain most on the linearised margin; the others as in the clean point."""
    inside = x.clamp(*ball.bounds(p.x))
    gain = flat((inside - p.x) * g).double()
    return torch.where(kept(gain, ball.eps).view_as(x), inside, p.x)
