"""An attack in a smaller ball."""

from dataclasses import dataclass, replace
from typing import Any

from brinell.attacks._common import Wrapper
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError


@dataclass(frozen=True)
class SmallerBall(Wrapper[Any]):
    """A wrapper that makes an attack in the ball of radius `share` times eps.

    Method: what is adversarial in a smaller ball is adversarial in the ball. An attack whose steps have the size of eps
    never looks close to the clean point. Cost: that of the attack. Reference: this project.
    Limits: for attacks of fixed radius; finds more only where a model is weak near its inputs alone.

    >>> SmallerBall(APGD(), 0.25).name
    'apgd-ce-within-0.25'
    """

    attack: AnyAttack = APGD()  # noqa: RUF009
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.attack.minimum_norm or self.attack.leaves_ball or self.attack.parts:
            raise PlanError(
                expected="an attack of fixed radius, for SmallerBall",
                got=self.attack.name,
                remedy='Write e.g. SmallerBall(APGD(loss="margin"), 0.5).',
            )
        if not 0 < self.share < 1:
            raise PlanError(
                expected="a share of eps between 0 and 1", got=f"share = {self.share}", remedy="Write e.g. share=0.5."
            )

    @property
    def name(self) -> str:
        return f"{self.attack.name}-within-{self.share:g}"

    @property
    def queries(self) -> int:
        return self.attack.queries

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        return self.attack.query_pattern

    def init(self, p: Batch, ball: Ball) -> Any:
        # An explicit start is queried as it is.
        return self.attack.init(p, self._smaller(ball) if p.start is None else ball)

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        return self.attack.step(s, a, p, self._smaller(ball))

    def _smaller(self, ball: Ball) -> Ball:
        return replace(ball, eps=self.share * ball.eps)
