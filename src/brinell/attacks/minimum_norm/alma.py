"""The augmented Lagrangian attack: minimise distance plus a penalty whose weight adapts to the constraint violation."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks._common import MinimumNormAttack, PointState, finite_loss, misclassified, schedule, start_in_box
from brinell.attacks._parameters import check_loss, check_positive, check_whole
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L1, L2, Norm
from brinell.ops.rowwise import rows
from brinell.ops.types import Labels, Points, Scalars

# Rony et al. 2021: the constraint is a margin of 1e-4. Every 10 steps the penalty grows by 1.2 in rows without success
# whose margin did not fall below 95 % of its last value. Averages decay by 0.9. The rate ends at a hundredth.
MARGIN, EVERY, ENOUGH, GROW, DECAY, RATE_END = 1e-4, 10, 0.95, 1.2, 0.9, 0.01
LEAST, MOST, TINY = 1e-6, 1e12, 1e-8


@dataclass(frozen=True)
class ALMAState(PointState):
    """State of ALMA, per row: point, μ, ρ, mean square, momentum, last checked constraint, step of first success."""

    mu: Scalars
    rho: Scalars
    square: Points
    velocity: Points
    last: Scalars
    first: Labels


@dataclass(frozen=True)
class ALMA(MinimumNormAttack[ALMAState]):
    """An attack that minimises distance plus an augmented Lagrangian of the margin, by normalised momentum steps.

    Method: the penalty P(v) of the constraint v (the negative loss plus 1e-4) is μv + μρv² + ρ²v³/6 for v ≥ 0 and
    μv / (1 − ρv) below; μ is a running mean of P's derivative, and ρ grows until the first success. Steps are divided
    by a running root mean square and have momentum; their rate decays after the first success. Cost per step: one
    forward and one backward pass; one more of each for the last point. Reference: Rony et al. 2021, "Augmented
    Lagrangian adversarial attacks", with its penalty P₂. Different here: in L1 a coordinate that would change sign
    stops at zero and stays there while the penalty pulls less than the distance, so that results are sparse; 1e-4 is
    added to the DLR ratio, not to its numerator; every misclassified point counts, however small its margin; with fewer
    than four classes the plain margin replaces DLR.
    Limits: needs hundreds of steps. With fewer steps μ does not settle and distances are too large. Fails where
    gradients are masked.

    >>> ALMA(steps=100).queries
    101
    """

    steps: int = 1000
    rate: float = 0.1
    loss: str = "dlr"
    method = "alma"
    norms: ClassVar[tuple[Norm, ...]] = (L2, L1)

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rate=self.rate)

    def init(self, p: Batch, ball: Ball) -> ALMAState:
        one = torch.ones_like(ball.eps)
        x, zero = start_in_box(p, ball), torch.zeros_like(p.x)
        never = torch.full_like(p.y, self.queries)
        return ALMAState(torch.zeros_like(p.y), x, one, one, torch.ones_like(zero), zero, torch.inf * one, never)

    def step(self, s: ALMAState, a: Response, p: Batch, ball: Ball) -> ALMAState:
        v = MARGIN - finite_loss(a)
        first = torch.where(misclassified(a, p), torch.minimum(s.first, s.t), s.first)
        check = (s.t > 0) & ((s.t + 1) % EVERY == 0)
        stuck = check & (first >= self.queries) & ~(v < ENOUGH * s.last)
        rho = torch.where(stuck, s.rho * GROW, s.rho)
        pull = _derivative(v, rho, s.mu)
        mu = torch.where(s.t > 0, (DECAY * s.mu + (1 - DECAY) * pull).clamp(LEAST, MOST), s.mu)
        pull = _derivative(v, rho, mu)
        d, away = s.x - p.x, rows(pull, s.x) * -ball.masked(a.gradient)
        towards = d.sign() if ball.norm.sparse else 2 * d
        g = torch.where(rows(s.t > 0, d), towards + away, away)
        square = DECAY * s.square + (1 - DECAY) * g.square()
        velocity = DECAY * s.velocity + g / (square.sqrt() + TINY)
        new = d - rows(self._rate(s.t, first), d) * velocity
        if ball.norm.sparse:
            held = (d * new < 0) | ((d == 0) & (away.abs() <= 1) & rows(s.t > 0, d))
            new, velocity = torch.where(held, 0.0, new), torch.where(held, 0.0, velocity)
        last = torch.where(check, v, s.last)
        return ALMAState(s.t + 1, ball.apply(p.x, new), mu, rho, square, velocity, last, first)

    def _rate(self, t: Labels, first: Labels) -> Scalars:
        """Return the step size per row: constant until the first success, then decaying to 1/100 at the last step."""
        succeeded = first < self.queries
        share = ((t - first).clamp(min=0) * self.steps) // (self.steps - first).clamp(min=1)
        return schedule("exponential", torch.where(succeeded, share, 0), self.steps, self.rate, self.rate * RATE_END)


def _derivative(v: Scalars, rho: Scalars, mu: Scalars) -> Scalars:
    above = mu + 2 * mu * rho * v + rho.square() * v.square() / 2
    below = mu / (1 - rho * v.clamp(max=0)).square()
    return torch.where(v >= 0, above, below)
