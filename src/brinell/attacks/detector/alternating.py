"""Alternating projections: on the linearised conditions of classifier and detector, then on the threat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks._common import PointState, start_in_ball
from brinell.attacks._parameters import SIGNED_MARGINS, check_positive, check_whole
from brinell.core.attack import Attack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Scalars

TINY = 1e-12


@dataclass(frozen=True)
class Alternating(Attack[PointState]):
    """An attack by alternating projections: on the linearised conditions (misclassified, accepted), then on the threat.

    Method: loss and score are linearised. The attack takes the shortest Euclidean step after which both conditions hold
    with a surplus, then projects exactly on ball and box. The surplus is a share of what the threat can reach; it
    shrinks geometrically from `beyond` to `at_last`. If loss and score are linear, these are alternating projections on
    two convex sets, which converge if the sets meet. No step is longer than the norm's steepest step of length eps.
    Cost per step: one forward and two backward passes; one more of each for the start. Reference: this project, after
    the method of alternating projections (von Neumann 1933) and DeepFool's linearisation (Moosavi-Dezfooli et al.
    2016).
    Limits: if the detector has no useful gradient, only the classifier is attacked.

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
        check_whole(steps=self.steps)
        check_positive(beyond=self.beyond)
        if self.loss not in SIGNED_MARGINS:
            raise PlanError(
                expected=f"a loss among {', '.join(SIGNED_MARGINS)}", got=self.loss, remedy='Write loss="margin".'
            )

    @property
    def name(self) -> str:
        return f"alternating-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> PointState:
        return PointState(torch.zeros_like(p.y), start_in_ball(p, ball, self.random_start))

    def step(self, s: PointState, a: Response, p: Batch, ball: Ball) -> PointState:
        up, down = flat(ball.masked(a.gradient)), flat(ball.masked(-a.score_gradient))
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
        return PointState(s.t + 1, ball.project(p.x, s.x + d.view_as(s.x)))


def _missing(value: Scalars, beyond: Scalars) -> Scalars:
    """Return, per row, `beyond` − `value` if positive, else 0; also 0 if `value` is not finite."""
    return torch.where(value.isfinite(), beyond - value, 0.0)


def _shortest(a: Tensor, need: Tensor, b: Tensor, want: Tensor) -> Tensor:
    """Return, per row, the shortest d with a·d ≥ need and b·d ≥ want; if a and b are parallel, one may fail."""
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
