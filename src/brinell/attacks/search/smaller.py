"""An attack in a smaller ball."""

from dataclasses import dataclass, replace
from typing import Any

from brinell.attacks._common import FixedRadius
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError


@dataclass(frozen=True)
class SmallerBall(FixedRadius):
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
        super().__post_init__()
        if not 0 < self.share < 1:
            raise PlanError(
                expected="a share of eps between 0 and 1", got=f"share = {self.share}", remedy="Write e.g. share=0.5."
            )

    @property
    def name(self) -> str:
        return f"{self.attack.name}-within-{self.share:g}"

    def init(self, p: Batch, ball: Ball) -> Any:
        # An explicit start is queried as it is.
        return self.attack.init(p, self._smaller(ball) if p.start is None else ball)

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        return self.attack.step(s, a, p, self._smaller(ball))

    def _smaller(self, ball: Ball) -> Ball:
        return replace(ball, eps=self.share * ball.eps)
