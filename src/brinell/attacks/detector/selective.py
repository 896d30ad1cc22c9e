"""Selective and orthogonal PGD: one of the two aims at a time, classifier or detector."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points

# Below this share of its length a gradient has nothing left that is orthogonal to the other one.
PARALLEL = 1e-6


@dataclass(frozen=True)
class State(AttackState):
    """The iterate."""

    t: Labels
    x: Points


@dataclass(frozen=True)
class SelectivePGD(Attack[State]):
    """PGD that follows the classifier's loss until the input is misclassified, then leads the detector's score down.

    Method: each step takes one of the two gradients, the detector's where the class is already wrong. With `orthogonal`
    what the taken gradient shares with the other one is removed first, so that a step for one aim does not, to first
    order, undo the other; where they are parallel it is taken as it is. Steps go along the gradient itself (`straight`)
    and shrink evenly from `rel_step` to `last_step` radii: with fixed ones, as published, the two aims throw each other
    back by a whole step at the end. Cost per step: one forward, two backwards; one more of each to look at the start.
    Reference: Bryniarski et al. 2021, Evading adversarial example detection defenses with orthogonal projected gradient
    descent.
    Limits: when both conditions hold in turn and never together it goes back and forth until its steps are over.

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
        _check.a_loss(self.loss)
        _check.positive(steps=self.steps, rel_step=self.rel_step, last_step=self.last_step)

    @property
    def name(self) -> str:
        """Method and loss."""
        return f"{'orthogonal' if self.orthogonal else 'selective'}-pgd-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> State:
        """A uniform random start, the clean point, or where told."""
        if p.start is not None:
            return State(torch.zeros_like(p.y), ball.project(p.x, p.start))
        return State(torch.zeros_like(p.y), ball.inside(p.x, p.key) if self.random_start else p.x)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step for the aim that is to be served."""
        up, down = a.gradient, -a.score_gradient
        fooled = margin(a.logits, p.y) > 0
        if self.orthogonal:
            up, down = _without(up, down), _without(down, up)
        g = where(fooled, down, up)
        share = (s.t.float() / self.steps).clamp(max=1.0)
        # Even shrinking: every step is the same share of the one before.
        length = self.rel_step * (self.last_step / self.rel_step) ** share * ball.eps
        return State(s.t + 1, ball.project(p.x, s.x + rows(length, g) * straight(g, ball)))


def straight(g: Points, ball: Ball) -> Tensor:
    """A step along the gradient itself, as long in the Euclidean sense as the norm's steepest step of size 1.

    Where two aims pull against each other the steepest step forgets what each coordinate is worth to either: in Linf it
    moves all of them alike and cannot trade one against the other.
    """
    free = g if ball.mask is None else g * ball.mask
    far = flat(ball.steepest(g)).norm(dim=1)
    return rows(far / flat(free).norm(dim=1).clamp(min=torch.finfo(g.dtype).tiny), g) * free


def _without(g: Points, other: Points) -> Tensor:
    """What of g is orthogonal to the other gradient; g itself where nothing is left."""
    a, b = flat(g), flat(other)
    along = (a * b).sum(1, keepdim=True) / (b * b).sum(1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
    rest = a - along * b
    some = rest.norm(dim=1) > PARALLEL * a.norm(dim=1)
    return torch.where(some[:, None], rest, a).view_as(g)
