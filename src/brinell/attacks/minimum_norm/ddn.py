"""Decoupled direction and norm: gradient steps on a sphere whose radius changes by a fixed factor."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import FLAT, MinimumNormAttack, PointState, misclassified, schedule, start_in_box, unit
from brinell.attacks._parameters import check_loss, check_numbers, check_positive, check_whole
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.norms import L2, Norm
from brinell.ops.rowwise import flat, may_branch, number_where, rows, where
from brinell.ops.types import Points, Scalars

# Rony et al. 2019: steps from 1 to 0.01 along a cosine, first radius 1.
STEP, STEP_END, FIRST = 1.0, 0.01, 1.0


@dataclass(frozen=True)
class DDNState(PointState):
    """State of DDN, per row: the point, its displacement from the clean point, the radius, and its largest value."""

    d: Points
    eps: Scalars
    span: Scalars


@dataclass(frozen=True)
class DDN(MinimumNormAttack[DDNState]):
    """Gradient steps on a sphere whose radius shrinks by the share `gamma` at adversarial points and grows elsewhere.

    Method: d ← d + α ∇/‖∇‖ on the cross-entropy, radius × (1 − γ) where misclassified and × (1 + γ) elsewhere,
    d ← radius · d / ‖d‖, then clipping to the box. Cost per step: one forward and one backward pass; one more of each
    for the last point. Reference: Rony et al. 2019, "Decoupling direction and norm for efficient gradient-based L2
    adversarial attacks". Different here: no rounding to 8 bits; where the gradient vanishes the direction is keyed
    noise of length 1; no radius is larger than the box.
    Limits: L2 only. The radius changes at a fixed rate, so short budgets end far from the boundary when the clean
    margin is large.

    >>> DDN(steps=50).queries
    51
    """

    steps: int = 1000
    gamma: float = 0.05
    loss: str = "ce"
    method = "ddn"
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(gamma=self.gamma)
        check_numbers(self.gamma < 1, "gamma below 1", gamma=self.gamma)

    def init(self, p: Batch, ball: Ball) -> DDNState:
        x = start_in_box(p, ball)
        span = ball.span(p.x)
        return DDNState(torch.zeros_like(p.y), x, x - p.x, torch.full_like(span, FIRST).minimum(span), span)

    def step(self, s: DDNState, a: Response, p: Batch, ball: Ball) -> DDNState:
        g = ball.masked(a.gradient)
        lost = flat(g).square().sum(1).sqrt() < FLAT
        if not may_branch(lost) or bool(lost.any()):
            g = where(lost, ball.masked(rng.normal(rng.fold(p.key, s.t), tuple(g.shape[1:]))), g)
        d = s.d + rows(schedule("cosine", s.t, self.steps, STEP, STEP_END), g) * unit(g)
        factor = number_where(misclassified(a, p), 1 - self.gamma, 1 + self.gamma)
        eps = torch.minimum(s.eps * factor, s.span)
        x = ball.apply(p.x, rows(eps, d) * unit(d))
        return DDNState(s.t + 1, x, x - p.x, eps, s.span)
