"""The attack that knows nothing: random points of the ball or of its surface."""

from dataclasses import dataclass

import torch

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import one_of
from brinell.ops import rng
from brinell.ops.types import Labels, Points

WHERE = ("inside", "surface", "corners")


@dataclass(frozen=True)
class State(AttackState):
    """The point to ask about."""

    t: Labels
    x: Points


@dataclass(frozen=True)
class RandomSampling(Attack[State]):
    """Independent random points, from inside the ball, from its surface, or from its corners (Linf).

    Method: point t of a sample depends on its key and t alone. Cost: one forward per point. Reference: Zimmermann et
    al. 2022, sec. 3.1, the random attack.

    >>> RandomSampling(200, "corners").queries
    200
    """

    queries: int = 200
    where: str = "inside"
    loss: str = "margin"
    requires = Requires.LOGITS
    stored_type = "Chance"

    def __post_init__(self) -> None:
        one_of("where", self.where, WHERE)
        _check.positive(queries=self.queries)

    @property
    def name(self) -> str:
        """Where the points come from."""
        return f"random-{self.where}"

    def init(self, p: Batch, ball: Ball) -> State:
        """The first point."""
        return self._at(torch.zeros_like(p.y), p, ball)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """The next point, whatever the answer."""
        return self._at(s.t + 1, p, ball)

    def _at(self, t: Labels, p: Batch, ball: Ball) -> State:
        key = rng.fold(p.key, t)
        if self.where == "inside":
            return State(t, ball.inside(p.x, key))
        return State(t, ball.surface(p.x, key, self.where == "corners"))


Chance = RandomSampling
"""The former name of the class."""
