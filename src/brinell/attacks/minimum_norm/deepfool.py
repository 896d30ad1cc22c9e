"""DeepFool: steps to the nearest linearised decision boundary until it is crossed."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import FLAT, MinimumNormAttack, PointState, misclassified, start_in_box
from brinell.attacks._parameters import check_positive, check_whole
from brinell.attacks.minimum_norm.fab import nearest_boundary
from brinell.core.attack import Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L0, L1, L2, LINF, Norm
from brinell.ops.rowwise import rows, where
from brinell.ops.types import Points, Scalars

# The authors' code steps this much beyond the linearised boundary.
BEYOND = 1e-4


@dataclass(frozen=True)
class DeepFoolState(PointState):
    """State of DeepFool, per row: the point, and the sum of the steps without overshoot."""

    d: Points


@dataclass(frozen=True)
class DeepFool(MinimumNormAttack[DeepFoolState]):
    """Steps to the nearest linearised boundary between classes, until the sample is misclassified.

    Method: choose the class whose hyperplane is nearest in the threat's norm and take the shortest step to it and 1e-4
    beyond; the sum of all steps is lengthened by the share `overshoot`, and the point is clipped to the box. In L1 and
    L0 the steps stay inside the box and end at the hyperplane. Cost per step: one forward pass, and one backward pass
    per class.
    Reference: Moosavi-Dezfooli, Fawzi & Frossard 2016, "DeepFool: a simple and accurate method to fool deep neural
    networks". Different here: points respect the box, and there are steps in L1 and L0; `Refine(DeepFool())` removes
    the overshoot.
    Limits: stops at the first boundary it crosses, so distances are too large where the boundary is curved. Costs one
    backward pass per class and step.

    >>> DeepFool(steps=20).queries
    21
    """

    steps: int = 50
    overshoot: float = 0.02
    loss = "margin"
    method = "deepfool"
    requires = Requires.JACOBIAN
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1, L0)

    def __post_init__(self) -> None:
        check_whole(steps=self.steps)
        check_positive(overshoot=self.overshoot)

    def init(self, p: Batch, ball: Ball) -> DeepFoolState:
        x = start_in_box(p, ball)
        return DeepFoolState(torch.zeros_like(p.y), x, x - p.x)

    def step(self, s: DeepFoolState, a: Response, p: Batch, ball: Ball) -> DeepFoolState:
        f, w = nearest_boundary(a, p.y, ball)
        done = misclassified(a, p)
        d = where(done, s.d, s.d + _step(s.x, torch.where(f.isfinite(), f, 0.0), w, p, ball))
        t = torch.where(done, self.queries, s.t + 1)
        return DeepFoolState(t, where(done, s.x, ball.apply(p.x, (1 + self.overshoot) * d)), d)


def _step(x: Points, f: Scalars, w: Points, p: Batch, ball: Ball) -> Points:
    """Return the step from x to the plane {u : f + w·(u − x) = 0}."""
    if ball.norm.sparse:
        # Without the box, such a step puts all of the distance on a few coordinates, and clipping loses most of it.
        lo, hi = ball.bounds(p.x)
        return ball.norm.to_hyperplane(w, -f.double(), lo - x, hi - x)
    # A step inside the box would move far along coordinates of small slope wherever steep ones have no room.
    length = f.abs() / (ball.norm.dual_size(w) + FLAT) + BEYOND
    return rows(-f.sign() * length, w) * ball.norm.steepest(w)
