"""Starts from perturbations that broke other samples."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.attacks._common import Wrapper
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.start_pool import StartPool
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.types import Points


@dataclass(frozen=True)
class PooledStarts(Wrapper[Any]):
    """A wrapper that starts an attack at a perturbation which broke another sample, instead of at a random one.

    Method: the noise key draws a perturbation of the `pool` from those of samples of the same class, if there are any,
    else from all. It is scaled to the sample's eps and projected on ball and box. Without a pool the attack starts as
    usual. Cost: that of the attack. Reference: after Liu et al. 2022, Practical evaluation of adversarial robustness
    via adaptive auto attack, whose starts adapt to the samples broken so far; here the pool is fixed beforehand, so
    that no sample's outcome depends on another.
    Limits: helps where perturbations transfer between samples; needs a pilot that broke some.

    >>> PooledStarts(APGD(steps=20)).name
    'apgd-ce-pooled'
    """

    attack: AnyAttack = APGD(50, "margin")  # noqa: RUF009
    pool: StartPool | None = None

    @property
    def name(self) -> str:
        return f"{self.attack.name}-pooled"

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        return self.attack.query_pattern

    @property
    def queries(self) -> int:
        return self.attack.queries

    @property
    def step_count(self) -> int | None:
        return self.attack.step_count

    def with_steps(self, steps: int) -> "PooledStarts":
        return replace(self, attack=self.attack.with_steps(steps))

    def without_images(self) -> "PooledStarts | None":
        other = self.attack.without_images()
        return None if other is None else replace(self, attack=other)

    @property
    def minimum_norm(self) -> bool:  # type: ignore[override]
        return self.attack.minimum_norm

    def init(self, p: Batch, ball: Ball) -> Any:
        start = p.start if self.pool is None or p.start is not None else self._draw(self.pool, p, ball)
        return self.attack.init(replace(p, start=start), ball)

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        return self.attack.step(s, a, p, ball)

    def _draw(self, pool: StartPool, p: Batch, ball: Ball) -> Points:
        same = pool.y.to(p.y.device) == p.y[:, None]
        fits = same | ~same.any(1, keepdim=True)
        draw = rng.uniform(rng.fold(p.key, rng.digest("pool")), (len(pool.y),))
        chosen = pool.d.to(p.x.device, p.x.dtype)[torch.where(fits, draw, -1.0).argmax(1)]
        within = ball.within_box(p.x)
        return ball.project(p.x, p.x + ball.masked(chosen * within.eps_like(p.x)))
