"""SuperDeepFool: DeepFool to the boundary, then the projection on its normal, in turns."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import FLAT, MinimumNormAttack, PointState, misclassified, start_in_box
from brinell.attacks._parameters import check_positive, check_whole
from brinell.attacks.minimum_norm.fab import nearest_boundary
from brinell.core.attack import Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L2, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Mask, Points


@dataclass(frozen=True)
class SuperDeepFoolState(PointState):
    """State, per row: the point, the start of the running DeepFool, the sum of its steps, and `projected`.

    `projected` marks rows whose point is a projection on the normal of the boundary.
    """

    base: Points
    d: Points
    projected: Mask


@dataclass(frozen=True)
class SuperDeepFool(MinimumNormAttack[SuperDeepFoolState]):
    """DeepFool until the sample is misclassified, then a projection that makes the perturbation orthogonal; repeated.

    Method: with w the gradient of z_k − z_y at the misclassified point x of class k, the next point is
    x0 + (w·(x − x0) / ‖w‖²) w. If it is misclassified the attack ends, else DeepFool goes on from it. This is
    SDF(∞, 1) of the paper without its line search, which `Refine(SuperDeepFool())` makes. Cost per step: one forward
    pass, and one backward pass per class.
    Reference: Abdollahpoor, Moosavi-Dezfooli et al. 2024, "Revisiting DeepFool: generalization and improvement".
    Different here: steps respect the box.
    Limits: L2 only. Costs one backward pass per class and step.

    >>> SuperDeepFool(steps=20).queries
    21
    """

    steps: int = 100
    overshoot: float = 0.02
    loss = "margin"
    method = "superdeepfool"
    requires = Requires.JACOBIAN
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        check_whole(steps=self.steps)
        check_positive(overshoot=self.overshoot)

    def init(self, p: Batch, ball: Ball) -> SuperDeepFoolState:
        x = start_in_box(p, ball)
        return SuperDeepFoolState(
            torch.zeros_like(p.y), x, x, torch.zeros_like(x), torch.zeros_like(p.y, dtype=torch.bool)
        )

    def step(self, s: SuperDeepFoolState, a: Response, p: Batch, ball: Ball) -> SuperDeepFoolState:
        hit = misclassified(a, p)
        # A clean point or a projection that is misclassified cannot be improved by another projection.
        done = hit & (s.projected | ~flat(s.x != p.x).any(1))
        # After a projection that fell short DeepFool starts again, from it.
        base, d = where(s.projected, s.x, s.base), where(s.projected, torch.zeros_like(s.d), s.d)
        f, w = nearest_boundary(a, p.y, ball)
        lo, hi = ball.bounds(p.x)
        gap = -torch.where(f.isfinite(), f, 0.0).double()
        d = d + ball.norm.to_hyperplane(w, gap, lo - s.x, hi - s.x)
        ahead = (base + (1 + self.overshoot) * d).clamp(lo, hi)
        x = where(done, s.x, where(hit, _orthogonal(s.x, a, p, ball), ahead))
        t = torch.where(done, self.queries, s.t + 1)
        return SuperDeepFoolState(t, x, base, d, hit & ~done)


def _orthogonal(x: Points, a: Response, p: Batch, ball: Ball) -> Points:
    """Return x0 plus the part of x − x0 along the normal of the boundary between the predicted class and the label."""
    assert a.jacobian is not None, "this attack does not require the gradients of all logits"
    row = torch.arange(len(p.y), device=p.y.device)
    w = ball.masked(a.jacobian[row, a.logits.argmax(1)] - a.jacobian[row, p.y]).double()
    w = torch.where(w.isfinite(), w, 0.0)
    d = (x - p.x).double()
    share = flat(w * d).sum(1) / flat(w).square().sum(1).clamp(min=FLAT)
    along = (rows(share, w) * w).to(x.dtype)
    # Without a normal there is no projection: the point stays.
    return ball.apply(p.x, where(flat(along).any(1), along, d.to(x.dtype)))
