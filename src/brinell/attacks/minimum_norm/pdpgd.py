"""Primal-dual attacks: descent on distance and margin, whose weights follow which of the two is wanting."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import (
    ahead,
    aimed,
    begin,
    exponential,
    fooled,
    free,
    linear,
    moved,
    power,
    unit,
)
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L1, L2, LINF, Norm
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Labels, Points, Scalars

# Matyasko & Chau 2021 and their code: Adam with rates down to a hundredth; the dual starts at 100 to 1 for the margin,
# its steps fall from 0.1 to 0.01, its weights are means over about ten steps.
RATE_END, DUAL, DUAL_STEP, DUAL_END, DUAL_MOST = 0.01, -math.log(0.01), 0.1, 0.01, -math.log(1e-6)
MEAN, BETA_1, BETA_2, TINY = 0.9, 0.9, 0.999, 1e-8
# Five, as in their code, leave stiff and soft coordinates apart: up to 3 % above the closed form on linear models.
INNER = 20


@dataclass(frozen=True)
class State(AttackState):
    """Iterate, Adam's two moments, the dual variable, and the margin's mean weight."""

    t: Labels
    x: Points
    m: Points
    v: Points
    dual: Scalars
    weight: Scalars


@dataclass(frozen=True)
class PDGD(Attack[State]):
    """Adam on the weighted sum of the Euclidean distance and the softened margin.

    Method: minimises w₁ ‖d‖₂ + w₂ softplus(margin); the dual variable, the logit of w₂, rises by a falling step where
    the point is not adversarial and falls where it is. Cost per step: one forward, one backward; one more of each for
    the last point. Reference: Matyasko & Chau 2021, "PDPGD: primal-dual proximal gradient descent adversarial attack".
    Limits: its two learning rates do not adapt; a badly scaled model needs others.

    >>> PDGD(steps=100).queries
    101
    """

    steps: int = 500
    rate: float = 0.1
    loss: str = "margin"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        _check.margins(self.loss)
        _check.positive(steps=self.steps, rate=self.rate)

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "pdgd" + aimed(self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        return _first(p, ball)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step of Adam on both terms."""
        dual, weight = _dual(s, a, p, self.steps)
        g = rows(1 - weight, s.x) * unit(s.x - p.x) - rows(weight, s.x) * _softened(a, ball)
        m, v, denominator = _moments(s, g, self.queries)
        rate = rows(exponential(s.t, self.steps, self.rate, self.rate * RATE_END), g)
        d = s.x - p.x - rate * _unbiased(m, s.t, self.queries) / denominator
        return State(s.t + 1, moved(p, d, ball), m, v, dual, weight)


@dataclass(frozen=True)
class PDPGD(Attack[State]):
    """Adam on the softened margin, then a proximal step on the distance.

    Method: as `PDGD`, with the distance taken out of the gradient and its proximal operator applied afterwards in
    Adam's metric, by twenty inner steps. Cost per step: one forward, one backward; one more of each for the last point.
    Reference: Matyasko & Chau 2021. Different here: twenty inner steps instead of at most five; no L0, where its
    threshold keeps many times the coordinates needed.
    Limits: its two learning rates do not adapt; a badly scaled model needs others.

    >>> PDPGD(steps=100).queries
    101
    """

    steps: int = 500
    rate: float = 0.1
    loss: str = "margin"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (LINF, L2, L1)

    def __post_init__(self) -> None:
        _check.margins(self.loss)
        _check.positive(steps=self.steps, rate=self.rate)

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "pdpgd" + aimed(self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        return _first(p, ball)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step of Adam on the margin, one proximal step on the distance."""
        dual, weight = _dual(s, a, p, self.steps)
        m, v, denominator = _moments(s, -_softened(a, ball), self.queries)
        rate = exponential(s.t, self.steps, self.rate, self.rate * RATE_END)
        there = s.x - p.x - rows(rate, s.x) * _unbiased(m, s.t, self.queries) / denominator
        stiffest = flat(denominator).amax(1)
        amount = (1 - weight) / weight * rate / stiffest
        metric = denominator / rows(stiffest, denominator)
        d = there
        for _ in range(INNER):
            d = ball.norm.shrink(d - metric * (d - there), amount)
        return State(s.t + 1, moved(p, d, ball), m, v, dual, weight)


def _first(p: Batch, ball: Ball) -> State:
    zero, one = torch.zeros_like(p.x), torch.ones_like(ball.eps)
    dual = DUAL * one
    return State(torch.zeros_like(p.y), begin(p, ball), zero, zero, dual, _share(dual))


def _share(dual: Scalars) -> Scalars:
    """The weight of the margin."""
    return dual.double().sigmoid().float()


def _dual(s: State, a: Response, p: Batch, steps: int) -> tuple[Scalars, Scalars]:
    wrong = torch.where(fooled(a, p), -1.0, 1.0)
    dual = (s.dual + linear(s.t, steps, DUAL_STEP, DUAL_END) * wrong).clamp(-DUAL_MOST, DUAL_MOST)
    return dual, MEAN * s.weight + (1 - MEAN) * _share(dual)


def _softened(a: Response, ball: Ball) -> Points:
    """The direction that lowers softplus(z_y − best other)."""
    g = free(a.gradient, ball)
    return g * rows((-ahead(a)).double().sigmoid().float(), g)


def _moments(s: State, g: Points, steps: int) -> tuple[Points, Points, Points]:
    m, v = BETA_1 * s.m + (1 - BETA_1) * g, BETA_2 * s.v + (1 - BETA_2) * g.square()
    return m, v, (v / rows(1 - power(s.t + 1, steps, BETA_2), v)).sqrt() + TINY


def _unbiased(m: Points, t: Labels, steps: int) -> Tensor:
    return m / rows(1 - power(t + 1, steps, BETA_1), m)
