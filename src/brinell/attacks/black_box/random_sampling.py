"""Random sampling: independent random points of the ball or of its surface."""

from dataclasses import dataclass

import torch

from brinell.attacks._common import PointState
from brinell.attacks._parameters import check_positive
from brinell.core.attack import Attack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import one_of
from brinell.ops import rng
from brinell.ops.types import Labels

WHERE = ("inside", "surface", "corners")


@dataclass(frozen=True)
class RandomSampling(Attack[PointState]):
    """An attack by independent random points: inside the ball, on its surface, or at its corners (Linf).

    Method: query number t of a sample depends only on the sample's noise key and t. Cost: one forward pass per point.
    Reference: Zimmermann et al. 2022, sec. 3.1, the random attack.

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
        check_positive(queries=self.queries)

    @property
    def name(self) -> str:
        return f"random-{self.where}"

    def init(self, p: Batch, ball: Ball) -> PointState:
        return self._draw(torch.zeros_like(p.y), p, ball)

    def step(self, s: PointState, a: Response, p: Batch, ball: Ball) -> PointState:
        return self._draw(s.t + 1, p, ball)

    def _draw(self, t: Labels, p: Batch, ball: Ball) -> PointState:
        key = rng.fold(p.key, t)
        if self.where == "inside":
            return PointState(t, ball.inside(p.x, key))
        return PointState(t, ball.surface(p.x, key, self.where == "corners"))


Chance = RandomSampling
"""The former name of the class."""
