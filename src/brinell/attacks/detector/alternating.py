"""Alternating projections: on what the classifier and the detector demand to first order, then on the threat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Labels, Points, Scalars

# Losses that are positive exactly where the aim is reached.
SIGNED = ("margin", "minimum-margin", "margin-towards")
TINY = 1e-12


@dataclass(frozen=True)
class State(AttackState):
    """The iterate."""

    t: Labels
    x: Points


@dataclass(frozen=True)
class Alternating(Attack[State]):
    """Steps to the nearest point where both aims are met to first order, then back into the threat, again and again.

    Method: loss and score are linearised; the shortest Euclidean step after which both aims are met and exceeded by a
    share of what is in reach of the threat (`beyond` at first, shrinking evenly to `at_last`) is taken, then the exact
    projection on ball and box. Where both are linear these are projections on convex sets in turn, which meet if the
    sets do. A step is never longer than the norm's steepest one of a radius. Cost per step: one forward, two
    backwards; one more of each for the start. Reference: this project, after the method of alternating projections
    (von Neumann 1933) and DeepFool's linearisation (Moosavi-Dezfooli et al. 2016).
    Limits: a detector without a useful gradient leaves it with the classifier alone.

    >>> Alternating(steps=50).queries
    51
    """

    steps: int = 300
    loss: str = "margin"
    beyond: float = 0.1
    at_last: float = 0.002
    random_start: bool = False
    requires = Requires.DETECTOR

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps, beyond=self.beyond)
        if self.loss not in SIGNED:
            raise PlanError(
                expected=f"a loss among {', '.join(SIGNED)}", got=self.loss, remedy="Its size must be a margin."
            )

    @property
    def name(self) -> str:
        """Method and loss."""
        return f"alternating-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, a uniform random start, or where told."""
        if p.start is not None:
            return State(torch.zeros_like(p.y), ball.project(p.x, p.start))
        return State(torch.zeros_like(p.y), ball.inside(p.x, p.key) if self.random_start else p.x)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One joint step, one projection."""
        free = 1.0 if ball.mask is None else ball.mask
        up, down = flat(a.gradient * free), flat(-a.score_gradient * free)
        share = (s.t.float() / self.steps).clamp(max=1.0)
        push = self.beyond * (self.at_last / self.beyond) ** share
        d = _shortest(
            up,
            _missing(a.loss, push * ball.reach(a.gradient)),
            down,
            _missing(-a.score, push * ball.reach(a.score_gradient)),
        )
        longest = ball.eps * flat(ball.steepest(a.gradient + a.score_gradient)).norm(dim=1)
        d = d * (longest / d.norm(dim=1).clamp(min=TINY)).clamp(max=1.0)[:, None]
        return State(s.t + 1, ball.project(p.x, s.x + d.view_as(s.x)))


def _missing(value: Scalars, beyond: Scalars) -> Scalars:
    """What an aim lacks to lie so far beyond zero; where it is no number, nothing."""
    return torch.where(value.isfinite(), beyond - value, 0.0)


def _shortest(a: Tensor, need: Tensor, b: Tensor, want: Tensor) -> Tensor:
    """The shortest d with a · d ≥ need and b · d ≥ want, row by row; parallel gradients are served one at a time."""
    aa, bb, ab = (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
    only_a = rows(need.clamp(min=0) / aa.clamp(min=TINY), a) * a
    only_b = rows(want.clamp(min=0) / bb.clamp(min=TINY), b) * b
    gram = aa * bb - ab * ab
    apart = gram > 1e-6 * aa * bb
    u = ((need * bb - want * ab) / gram.clamp(min=TINY)).clamp(min=0)
    v = ((want * aa - need * ab) / gram.clamp(min=TINY)).clamp(min=0)
    both = rows(u, a) * a + rows(v, b) * b
    a_does, b_does = (only_a * b).sum(1) >= want, (only_b * a).sum(1) >= need
    d = torch.where(
        (apart & ~a_does & ~b_does)[:, None], both, torch.where((~a_does & b_does)[:, None], only_b, only_a)
    )
    return torch.where(((need > 0) | (want > 0))[:, None], d, 0.0)
