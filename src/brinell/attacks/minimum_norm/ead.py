"""Elastic-net attack: accelerated shrinkage towards the clean point, and a search over the weight of the margin."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm import _tradeoff
from brinell.attacks.minimum_norm._common import ahead, aimed, begin, fooled, free, moved
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.norms import L1, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points


@dataclass(frozen=True)
class State(AttackState):
    """The point asked about, ahead of the iterate by its momentum; the iterate; the search over the constant."""

    t: Labels
    x: Points
    z: Points
    search: _tradeoff.Search


@dataclass(frozen=True)
class EAD(Attack[State]):
    """Minimises c · max(margin, 0) + ‖d‖₂² + an L1 term by shrinkage, for ever better c.

    Method: a gradient step on margin and squared distance, then every coordinate shrinks towards the clean point by
    `beta`; momentum k / (k + 3); the rate falls with the root of the steps left; constants as in `CW`. Cost: at most
    `steps` forwards and backwards in each of `rounds` rounds. Reference: Chen et al. 2018, "EAD: elastic-net attacks to
    deep neural networks via adversarial examples", with the numbers of Foolbox 2.4, where what is asked about, and may
    count, is the point ahead of the iterate.
    Limits: is slow to become sparse and, like CW, depends on the constant that it searches for.

    >>> EAD(steps=100, rounds=5).queries
    500
    """

    steps: int = 1000
    rounds: int = 10
    rate: float = 1e-2
    beta: float = 1e-2
    first: float = 1e-2
    loss: str = "margin"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (L1,)

    def __post_init__(self) -> None:
        _check.margins(self.loss)
        _check.positive(steps=self.steps, rate=self.rate, beta=self.beta, first=self.first)
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise PlanError(expected="at least 1 round", got=f"rounds = {self.rounds}", remedy="Leave it out for 10.")

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "ead" + aimed(self.loss)

    @property
    def queries(self) -> int:
        """Every step of every round."""
        return self.steps * self.rounds

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        x = begin(p, ball)
        return State(torch.zeros_like(p.y), x, x, _tradeoff.first(ball.eps, p.y, self.first))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step of shrinkage, or a new round."""
        d, behind = s.x - p.x, (-ahead(a)).clamp(min=0)
        objective = flat(d).square().sum(1) + s.search.c * behind + self.beta / self.rate * ball.norm.size(d)
        search, over = _tradeoff.observe(s.search, objective, fooled(a, p), self.steps)
        weight = rows(torch.where(behind > 0, s.search.c, 0.0), d)
        left = (1 - s.search.k / self.steps).clamp(min=0).sqrt()
        lower = d - rows(self.rate * left, d) * (2 * d - weight * free(a.gradient, ball))
        z = moved(p, ball.norm.shrink(lower, torch.full_like(left, self.beta)), ball)
        momentum = rows(s.search.k / (s.search.k + 3), d)
        x = (z + momentum * (z - s.z)).clamp(*ball.bounds(p.x))
        search = _tradeoff.settle(search, over, self.rounds)
        t = torch.where(over & (search.round >= self.rounds), self.queries, s.t + 1)
        return State(t, where(over, p.x, x), where(over, p.x, z), search)
