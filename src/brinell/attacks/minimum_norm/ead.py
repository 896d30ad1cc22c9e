"""The elastic-net attack: accelerated shrinkage-thresholding, and a search over the weight of the margin."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import MinimumNormAttack, PointState, finite_loss, misclassified, start_in_box
from brinell.attacks._parameters import check_margin_loss, check_positive, check_whole
from brinell.attacks.minimum_norm import _tradeoff
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L1, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Points


@dataclass(frozen=True)
class EADState(PointState):
    """State of EAD: the queried point (iterate plus momentum), the iterate z, and the search over the constant c."""

    z: Points
    search: _tradeoff.ConstantSearch


@dataclass(frozen=True)
class EAD(MinimumNormAttack[EADState]):
    """An attack that minimises c · max(−margin, 0) + ‖d‖₂² + an L1 penalty in rounds that search for the best c.

    Method: take a gradient step on margin and squared distance, then shrink every coordinate towards the clean point by
    `beta`; momentum k / (k + 3); the rate is proportional to the square root of the remaining steps; c as in `CW`.
    Cost: at most `steps` forward and backward passes in each of `rounds` rounds. Reference: Chen et al. 2018, "EAD:
    elastic-net attacks to deep neural networks via adversarial examples", with the hyper-parameters of Foolbox
    2.4, which queries the point with momentum and counts it as a candidate.
    Limits: becomes sparse slowly and, like CW, depends on the constant that it searches for.

    >>> EAD(steps=100, rounds=5).queries
    500
    """

    steps: int = 1000
    rounds: int = 10
    rate: float = 1e-2
    beta: float = 1e-2
    first: float = 1e-2
    loss: str = "margin"
    method = "ead"
    norms: ClassVar[tuple[Norm, ...]] = (L1,)

    def __post_init__(self) -> None:
        check_margin_loss(self.loss)
        check_whole(steps=self.steps, rounds=self.rounds)
        check_positive(rate=self.rate, beta=self.beta, first=self.first)

    @property
    def queries(self) -> int:
        return self.steps * self.rounds

    def init(self, p: Batch, ball: Ball) -> EADState:
        x = start_in_box(p, ball)
        return EADState(torch.zeros_like(p.y), x, x, _tradeoff.first(ball.eps, p.y, self.first))

    def step(self, s: EADState, a: Response, p: Batch, ball: Ball) -> EADState:
        d, behind = s.x - p.x, (-finite_loss(a)).clamp(min=0)
        objective = flat(d).square().sum(1) + s.search.c * behind + self.beta / self.rate * ball.norm.size(d)
        search, over = _tradeoff.observe(s.search, objective, misclassified(a, p), self.steps)
        weight = rows(torch.where(behind > 0, s.search.c, 0.0), d)
        remaining = (1 - s.search.k.float() / self.steps).clamp(min=0).sqrt()
        lower = d - rows(self.rate * remaining, d) * (2 * d - weight * ball.masked(a.gradient))
        z = ball.apply(p.x, ball.norm.shrink(lower, torch.full_like(remaining, self.beta)))
        momentum = rows(s.search.k.float() / (s.search.k + 3), d)
        x = (z + momentum * (z - s.z)).clamp(*ball.bounds(p.x))
        search = _tradeoff.next_constant(search, over, self.rounds)
        t = torch.where(over & (search.round >= self.rounds), self.queries, s.t + 1)
        return EADState(t, where(over, p.x, x), where(over, p.x, z), search)
