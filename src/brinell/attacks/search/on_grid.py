"""An attack whose points lie on the 8-bit grid of the clean image."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.attacks._common import FixedRadius
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.types import Points

LEVELS = 255
# A perturbation of n levels is n levels even if rounding has made it a little less.
SLACK = 1e-3


@dataclass(frozen=True)
class OnGrid(FixedRadius):
    """A wrapper that rounds every point of an attack to the 8-bit grid, towards the clean point.

    Method: perturbations are cut to whole levels of 1/255 before each query, and the attack goes on from the rounded
    point. Rounding towards the clean point keeps it in the ball. Cost: that of the attack. Reference: this project.
    Limits: for attacks of fixed radius. Points lie on the grid only if the clean image does. A radius below one level
    leaves the clean image.

    >>> OnGrid(APGD()).name
    'apgd-ce-8bit'
    """

    attack: AnyAttack = APGD()  # noqa: RUF009

    @property
    def name(self) -> str:
        return f"{self.attack.name}-8bit"

    def init(self, p: Batch, ball: Ball) -> Any:
        s = self.attack.init(p, ball)
        if p.start is not None:
            return s  # an explicit start is queried as it is
        return replace(s, x=to_grid(p.x, s.x))

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        s = self.attack.step(s, a, p, ball)
        return replace(s, x=to_grid(p.x, s.x))


def to_grid(x0: Points, x: Points) -> Points:
    """Return the points x with whole levels of 1/255 as differences from x0, rounded towards x0.

    >>> (255 * to_grid(torch.tensor([[51 / 255]]), torch.tensor([[53.9 / 255]]))).round(decimals=3).item()
    53.0
    """
    levels, origin = LEVELS * (x - x0), LEVELS * x0
    origin = torch.where((origin - origin.round()).abs() < SLACK, origin.round(), origin)
    return (origin + (levels + SLACK * levels.sign()).trunc()) / LEVELS
