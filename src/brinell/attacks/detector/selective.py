"""Selective and orthogonal PGD: each step follows either the classifier's or the detector's gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks._common import PointState, start_in_ball
from brinell.attacks._parameters import check_loss, check_positive, check_whole
from brinell.core.attack import Attack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Points

# A gradient whose orthogonal part is a smaller share of its length counts as parallel to the other one.
PARALLEL = 1e-6


@dataclass(frozen=True)
class SelectivePGD(Attack[PointState]):
    """PGD on the classifier's loss until the input is misclassified, then on the detector's score.

    Method: each step follows one gradient: the detector's at misclassified points, else the classifier's. With
    `orthogonal` its component along the second gradient is removed first, so that a step for one condition does not, to
    first order, undo the other; parallel gradients are used unchanged. Steps go along the gradient itself
    (`gradient_step`) and shrink geometrically from `rel_step` to `last_step` radii. With steps of fixed length, as
    published, the last steps for one condition undo the other. Cost per step: one forward and two
    backward passes; one more of each for the start. Reference: Bryniarski et al. 2021, Evading adversarial example
    detection defenses with orthogonal projected gradient descent.
    Limits: oscillates to the last step if no iterate is both misclassified and accepted.

    >>> SelectivePGD(steps=50).queries, SelectivePGD(orthogonal=True).name
    (51, 'orthogonal-pgd-margin')
    """

    steps: int = 300
    rel_step: float = 0.2
    last_step: float = 0.02
    loss: str = "margin"
    orthogonal: bool = False
    random_start: bool = True
    requires = Requires.DETECTOR

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rel_step=self.rel_step, last_step=self.last_step)

    @property
    def name(self) -> str:
        return f"{'orthogonal' if self.orthogonal else 'selective'}-pgd-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> PointState:
        return PointState(torch.zeros_like(p.y), start_in_ball(p, ball, self.random_start))

    def step(self, s: PointState, a: Response, p: Batch, ball: Ball) -> PointState:
        up, down = a.gradient, -a.score_gradient
        fooled = margin(a.logits, p.y) > 0
        if self.orthogonal:
            up, down = _without(up, down), _without(down, up)
        g = where(fooled, down, up)
        share = (s.t.float() / self.steps).clamp(max=1.0)
        length = self.rel_step * (self.last_step / self.rel_step) ** share * ball.eps
        return PointState(s.t + 1, ball.project(p.x, s.x + rows(length, g) * gradient_step(g, ball)))


def gradient_step(g: Points, ball: Ball) -> Tensor:
    """Return g scaled to the Euclidean length that the norm's steepest step of size 1 has.

    The steepest step ignores how much each coordinate matters: in Linf it moves all coordinates by the same amount, so
    it cannot trade one condition against the other.
    """
    free = ball.masked(g)
    far = flat(ball.steepest(g)).norm(dim=1)
    return rows(far / flat(free).norm(dim=1).clamp(min=torch.finfo(g.dtype).tiny), g) * free


def _without(g: Points, other: Points) -> Tensor:
    """Return, per row, the component of g orthogonal to `other`; g itself where g and `other` are parallel."""
    a, b = flat(g), flat(other)
    along = (a * b).sum(1, keepdim=True) / (b * b).sum(1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
    rest = a - along * b
    some = rest.norm(dim=1) > PARALLEL * a.norm(dim=1)
    return torch.where(some[:, None], rest, a).view_as(g)
