"""A bisection of the segment between the clean point and the nearest adversarial point of an attack."""

from dataclasses import dataclass
from typing import Any

import torch

from brinell.attacks._common import PointState, Wrapper, misclassified, stepped
from brinell.attacks._parameters import check_whole
from brinell.attacks.minimum_norm.deepfool import DeepFool
from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.rowwise import may_branch, rows, where
from brinell.ops.types import Labels, Mask, Points, Scalars


@dataclass(frozen=True)
class RefineState(PointState):
    """State, per row: the wrapped attack's state, the nearest adversarial point, and the limits of the bisection."""

    inner: Any
    nearest: Points
    distance: Scalars
    low: Scalars
    high: Scalars
    back: Mask
    halved: Labels

    @property
    def exploring(self) -> Mask | None:
        inner: Mask | None = self.inner.exploring
        return None if inner is None else inner & ~self.back


@dataclass(frozen=True)
class Refine(Wrapper[RefineState]):
    """A wrapper that runs a minimum-norm attack, then bisects the segment from clean to nearest adversarial point.

    Method: `search` bisections for the point of the segment at which the class changes. All queried points are
    candidates. Cost: that of the attack plus `search` forward and backward passes. Reference: the final search of Croce
    & Hein 2020, "Minimally distorted adversarial examples", here for any attack.
    Limits: shortens the distance of an adversarial point, but does not find new ones.

    >>> Refine(DeepFool(steps=20), search=10).queries
    31
    """

    attack: AnyAttack = DeepFool()  # noqa: RUF009
    search: int = 10
    minimum_norm = True

    def __post_init__(self) -> None:
        if not self.attack.minimum_norm:
            raise PlanError(
                expected="a minimum-norm attack",
                got=self.attack.name,
                remedy="Use Bisect(attack) for attacks of a fixed radius.",
            )
        check_whole(search=self.search)

    @property
    def name(self) -> str:
        return f"{self.attack.name}-refined"

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        return self.attack.query_pattern

    @property
    def queries(self) -> int:
        return self.attack.queries + self.search

    def init(self, p: Batch, ball: Ball) -> RefineState:
        inner = self.attack.init(p, ball)
        zero, far = torch.zeros_like(ball.eps), torch.full_like(ball.eps, torch.inf)
        none = torch.zeros_like(p.y)
        return RefineState(none, inner.x, inner, p.x, far, zero, zero + 1, none.bool(), none)

    def step(self, s: RefineState, a: Response, p: Batch, ball: Ball) -> RefineState:
        hit, size = misclassified(a, p), ball.norm.size(s.x - p.x)
        nearer = hit & ~s.back & (size < s.distance) & ball.allows(p.x, s.x)
        nearest, distance = where(nearer, s.x, s.nearest), torch.where(nearer, size, s.distance)
        middle = (s.low + s.high) / 2
        low, high = torch.where(s.back & ~hit, middle, s.low), torch.where(s.back & hit, middle, s.high)
        inner = stepped(self.attack, ~s.back, s.inner, a, p, ball)
        spent = ~s.back & (inner.t >= self.attack.queries)
        back, halved = s.back | spent, s.halved + s.back.long()
        # Rows without an adversarial point have no segment to bisect.
        done = (spent & distance.isinf()) | (halved >= self.search)
        t, x = torch.where(done, self.queries, s.t + 1), inner.x
        if not may_branch(back) or bool(back.any()):
            x = where(back, p.x + rows((low + high) / 2, nearest) * (nearest - p.x), x)
        return RefineState(t, x, inner, nearest, distance, low, high, back, halved)
