"""DeepFool: to the nearest linearised boundary, again and again, until it is crossed."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import begin, fooled, moved
from brinell.attacks.minimum_norm.fab import _nearest
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L0, L1, L2, LINF, Norm
from brinell.ops.rowwise import where
from brinell.ops.types import Labels, Points


@dataclass(frozen=True)
class State(AttackState):
    """The point asked about, and the sum of the steps, which it overshoots."""

    t: Labels
    x: Points
    d: Points


@dataclass(frozen=True)
class DeepFool(Attack[State]):
    """Steps to the nearest class's linearised boundary; a sample is done as soon as it is misclassified.

    Method: of all classes the one whose hyperplane is nearest in the threat's norm; the shortest step to it inside the
    box; the sum of all steps is overshot by `overshoot`. Cost per step: one forward and a backward for each class.
    Reference: Moosavi-Dezfooli, Fawzi & Frossard 2016, "DeepFool: a simple and accurate method to fool deep neural
    networks". Different here: steps respect the box, and L1 and L0 have theirs; `Refine(DeepFool())` takes the
    overshoot back.
    Limits: stops at the first boundary it meets, so distances are too large where the boundary is curved; costs a
    backward per class and step.

    >>> DeepFool(steps=20).queries
    21
    """

    steps: int = 50
    overshoot: float = 0.02
    loss = "margin"
    name = "deepfool"
    minimum_norm = True
    requires = Requires.JACOBIAN
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1, L0)

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps, overshoot=self.overshoot)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        x = begin(p, ball)
        return State(torch.zeros_like(p.y), x, x - p.x)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step further, unless the boundary is behind."""
        f, w = _nearest(a, p.y, 1.0 if ball.mask is None else ball.mask, ball)
        lo, hi = ball.bounds(p.x)
        gap = -torch.where(f.isfinite(), f, 0.0).double()
        d = s.d + ball.norm.to_hyperplane(w, gap, lo - s.x, hi - s.x)
        done = fooled(a, p)
        d = where(done, s.d, d)
        t = torch.where(done, self.queries, s.t + 1)
        return State(t, where(done, s.x, moved(p, (1 + self.overshoot) * d, ball)), d)
