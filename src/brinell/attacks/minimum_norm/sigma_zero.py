"""Sigma-zero: gradient descent on a smooth approximation of the number of changed coordinates."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import FLAT, MinimumNormAttack, PointState, misclassified, schedule, start_in_box
from brinell.attacks._parameters import check_margin_loss, check_numbers, check_positive, check_whole
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L0, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Scalars


@dataclass(frozen=True)
class SigmaZeroState(PointState):
    """State of sigma-zero, per row: the point, and the threshold below which changes are set to zero."""

    threshold: Scalars


@dataclass(frozen=True)
class SigmaZero(MinimumNormAttack[SigmaZeroState]):
    """Normalised gradient steps on margin and on Σ d²/(d² + σ), with small changes set to zero.

    Method: d ← clip(d − η g/‖g‖∞) with g = ∇ [max(−margin, 0) + Σ_i d_i²/(d_i² + σ) / n]; then coordinates with
    |d_i| < τ become 0. η falls from `rate` to 0 along a cosine. τ grows by `adjust` · η at adversarial points and
    shrinks by it elsewhere. Cost per step: one forward and one backward pass; one more of each for the last point.
    Reference: Cinà et al. 2025, "σ-zero: gradient-based optimization of ℓ0-norm adversarial examples" (1,000 steps,
    σ = 0.001, τ = 0.3, adjust = 0.01).
    Limits: L0 only. Needs hundreds of steps.

    >>> SigmaZero(steps=100).queries
    101
    """

    steps: int = 1000
    rate: float = 1.0
    sigma: float = 1e-3
    threshold: float = 0.3
    adjust: float = 0.01
    loss: str = "margin"
    method = "sigma-zero"
    norms: ClassVar[tuple[Norm, ...]] = (L0,)

    def __post_init__(self) -> None:
        check_margin_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rate=self.rate, sigma=self.sigma, adjust=self.adjust)
        check_numbers(0 <= self.threshold <= 1, "a threshold between 0 and 1", threshold=self.threshold)

    def init(self, p: Batch, ball: Ball) -> SigmaZeroState:
        return SigmaZeroState(torch.zeros_like(p.y), start_in_box(p, ball), torch.full_like(ball.eps, self.threshold))

    def step(self, s: SigmaZeroState, a: Response, p: Batch, ball: Ball) -> SigmaZeroState:
        hit, d = misclassified(a, p), s.x - p.x
        sparse = 2 * d * self.sigma / (d.square() + self.sigma).square() / flat(d).shape[1]
        g = sparse - where(hit, torch.zeros_like(d), ball.masked(a.gradient))
        g = torch.where(g.isfinite(), g, 0.0)
        rate = schedule("cosine", s.t, self.steps, self.rate)
        d = d - rows(rate, g) * g / rows(flat(g).abs().amax(1).clamp(min=FLAT), g)
        d = ball.apply(p.x, d) - p.x
        small = d.abs() < rows(s.threshold, d)
        threshold = (s.threshold + torch.where(hit, self.adjust, -self.adjust) * rate).clamp(0, 1)
        return SigmaZeroState(s.t + 1, torch.where(small, p.x, (p.x + d).clamp(*ball.bounds(p.x))), threshold)
