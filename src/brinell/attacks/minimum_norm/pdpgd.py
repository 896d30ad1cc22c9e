"""Primal-dual attacks: descent on distance and margin, with weights that a dual variable adapts."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import (
    MinimumNormAttack,
    PointState,
    adam,
    finite_loss,
    misclassified,
    schedule,
    start_in_box,
    unit,
)
from brinell.attacks._parameters import check_margin_loss, check_positive, check_whole
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L1, L2, LINF, Norm
from brinell.ops.rowwise import flat, number_where, rows
from brinell.ops.types import Labels, Points, Scalars

# Matyasko & Chau 2021 and their code: Adam's rate falls to a hundredth. The dual variable starts at 100 to 1 for
# the margin; its steps fall from 0.1 to 0.01; the weights are means over about ten steps.
RATE_END, DUAL, DUAL_STEP, DUAL_END, DUAL_MOST = 0.01, -math.log(0.01), 0.1, 0.01, -math.log(1e-6)
MEAN = 0.9
# Their code uses five, too few for badly scaled coordinates: up to 3 % above the closed form on linear models.
INNER = 20


@dataclass(frozen=True)
class PrimalDualState(PointState):
    """State, per row: the point, Adam's two moments, the dual variable, and the running mean of the margin's weight."""

    m: Points
    v: Points
    dual: Scalars
    weight: Scalars


@dataclass(frozen=True)
class _PrimalDual(MinimumNormAttack[PrimalDualState]):
    """The base class of PDGD and PDPGD: hyper-parameters, start, and the update of the dual variable."""

    steps: int = 500
    rate: float = 0.1
    loss: str = "margin"

    def __post_init__(self) -> None:
        check_margin_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rate=self.rate)

    def init(self, p: Batch, ball: Ball) -> PrimalDualState:
        zero, one = torch.zeros_like(p.x), torch.ones_like(ball.eps)
        dual = DUAL * one
        return PrimalDualState(torch.zeros_like(p.y), start_in_box(p, ball), zero, zero, dual, _margin_weight(dual))

    def _update_dual(self, s: PrimalDualState, a: Response, p: Batch) -> tuple[Scalars, Scalars]:
        sign = number_where(misclassified(a, p), -1.0, 1.0)
        dual = (s.dual + schedule("linear", s.t, self.steps, DUAL_STEP, DUAL_END) * sign).clamp(-DUAL_MOST, DUAL_MOST)
        return dual, MEAN * s.weight + (1 - MEAN) * _margin_weight(dual)

    def _rate(self, t: Labels) -> Scalars:
        return schedule("exponential", t, self.steps, self.rate, self.rate * RATE_END)


@dataclass(frozen=True)
class PDGD(_PrimalDual):
    """Adam on the weighted sum of the Euclidean distance and softplus(−margin).

    Method: minimises (1 − w) ‖d‖₂ + w softplus(−margin). The dual variable is the logit of w: it rises by a decreasing
    step if the point is not adversarial, and falls otherwise. Cost per step: one forward and one backward pass; one
    more of each for the last point. Reference: Matyasko & Chau 2021, "PDPGD: primal-dual proximal gradient descent
    adversarial attack".
    Limits: its two learning rates do not adapt. A badly scaled model needs other rates.

    >>> PDGD(steps=100).queries
    101
    """

    method = "pdgd"
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def step(self, s: PrimalDualState, a: Response, p: Batch, ball: Ball) -> PrimalDualState:
        dual, weight = self._update_dual(s, a, p)
        g = rows(1 - weight, s.x) * unit(s.x - p.x) - rows(weight, s.x) * _softplus_descent(a, ball)
        m, v, mean, size = adam(s.m, s.v, g, s.t + 1, self.queries)
        d = s.x - p.x - rows(self._rate(s.t), g) * mean / size
        return PrimalDualState(s.t + 1, ball.apply(p.x, d), m, v, dual, weight)


@dataclass(frozen=True)
class PDPGD(_PrimalDual):
    """Adam on softplus(−margin), with the proximal operator of the distance after each step.

    Method: as `PDGD`, but the gradient is that of the softplus only; then the distance's proximal operator is computed
    in Adam's metric by twenty inner steps. Cost per step: one forward and one backward pass; one more of each for the
    last point. Reference: Matyasko & Chau 2021. Different here: twenty inner steps instead of at most five; no L0,
    where the proximal operator keeps far more coordinates than needed.
    Limits: its two learning rates do not adapt. A badly scaled model needs other rates.

    >>> PDPGD(steps=100).queries
    101
    """

    method = "pdpgd"
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1)

    def step(self, s: PrimalDualState, a: Response, p: Batch, ball: Ball) -> PrimalDualState:
        dual, weight = self._update_dual(s, a, p)
        m, v, mean, size = adam(s.m, s.v, -_softplus_descent(a, ball), s.t + 1, self.queries)
        rate = self._rate(s.t)
        target = s.x - p.x - rows(rate, s.x) * mean / size
        stiffest = flat(size).amax(1)
        amount = (1 - weight) / weight * rate / stiffest
        metric = size / rows(stiffest, size)
        d = target
        for _ in range(INNER):
            d = ball.norm.shrink(d - metric * (d - target), amount)
        return PrimalDualState(s.t + 1, ball.apply(p.x, d), m, v, dual, weight)


def _margin_weight(dual: Scalars) -> Scalars:
    return dual.double().sigmoid().float()


def _softplus_descent(a: Response, ball: Ball) -> Points:
    """Return the negative gradient of softplus(z_y − largest other logit)."""
    g = ball.masked(a.gradient)
    return g * rows((-finite_loss(a)).double().sigmoid().float(), g)
