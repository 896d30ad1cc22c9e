"""Back from what an attack found towards the clean point, as far as the model stays wrong."""

from dataclasses import dataclass
from typing import Any

import torch

from brinell.attacks._wrapper import Wrapper
from brinell.attacks.minimum_norm._common import fooled
from brinell.attacks.minimum_norm.deepfool import DeepFool
from brinell.core.attack import AnyAttack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.rowwise import rows, where, where_rows
from brinell.ops.types import Labels, Mask, Points, Scalars


@dataclass(frozen=True)
class State(AttackState):
    """The inner attack; the nearest adversarial it found; the bisection of the way back to the clean point."""

    t: Labels
    x: Points
    inner: Any
    nearest: Points
    distance: Scalars
    low: Scalars
    high: Scalars
    back: Mask
    halved: Labels

    @property
    def exploring(self) -> Mask | None:
        """The inner attack's points that only serve to find the way."""
        inner: Mask | None = self.inner.exploring
        return None if inner is None else inner & ~self.back


@dataclass(frozen=True)
class Refine(Wrapper[State]):
    """Runs a minimising attack, then bisects the segment between the clean point and the nearest adversarial found.

    Method: `search` bisections of the share of the segment at which the class changes; the smallest adversarial share
    and everything the inner attack asked about count. Cost: that of the attack plus `search` forwards and backwards.
    Reference: the final search of Croce & Hein 2020, "Minimally distorted adversarial examples", for any attack.
    Limits: needs a neighbour that is already adversarial; it shortens, it does not find.

    >>> Refine(DeepFool(steps=20), search=10).queries
    31
    """

    attack: AnyAttack = DeepFool()  # noqa: RUF009
    search: int = 10
    minimum_norm = True

    def __post_init__(self) -> None:
        if not self.attack.minimum_norm:
            raise PlanError(
                expected="an attack that looks for the smallest distance",
                got=self.attack.name,
                remedy="Use Bisect(attack) for attacks of a fixed radius.",
            )
        if not isinstance(self.search, int) or self.search < 1:
            raise PlanError(expected="at least 1 bisection", got=f"{self.search}", remedy="Leave it out for 10.")

    @property
    def name(self) -> str:
        """The attack's."""
        return f"{self.attack.name}-refined"

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        """The attack's."""
        return self.attack.query_pattern

    @property
    def queries(self) -> int:
        """Those of the attack, and one per bisection."""
        return self.attack.queries + self.search

    def init(self, p: Batch, ball: Ball) -> State:
        """As the attack begins."""
        inner = self.attack.init(p, ball)
        zero, far = torch.zeros_like(ball.eps), torch.full_like(ball.eps, torch.inf)
        none = torch.zeros_like(p.y)
        return State(none, inner.x, inner, p.x, far, zero, zero + 1, none.bool(), none)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """A step of the attack, or half of the way that is left."""
        hit, size = fooled(a, p), ball.norm.size(s.x - p.x)
        nearer = hit & ~s.back & (size < s.distance) & ball.allows(p.x, s.x)
        nearest, distance = where(nearer, s.x, s.nearest), torch.where(nearer, size, s.distance)
        middle = (s.low + s.high) / 2
        low, high = torch.where(s.back & ~hit, middle, s.low), torch.where(s.back & hit, middle, s.high)
        inner = where_rows(s.back, s.inner, self.attack.step(s.inner, a, p, ball))
        spent = ~s.back & (inner.t >= self.attack.queries)
        back, halved = s.back | spent, s.halved + s.back.long()
        # A row without an adversarial has nothing to go back from.
        done = (spent & distance.isinf()) | (halved >= self.search)
        t = torch.where(done, self.queries, s.t + 1)
        way = p.x + rows((low + high) / 2, nearest) * (nearest - p.x)
        return State(t, where(back, way, inner.x), inner, nearest, distance, low, high, back, halved)
