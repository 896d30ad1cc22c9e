"""Augmented Lagrangian attack: distance plus a penalty whose weight follows how far the constraint is missed."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import ahead, aimed, begin, exponential, fooled, free, moved
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L1, L2, Norm
from brinell.ops.rowwise import rows
from brinell.ops.types import Labels, Points, Scalars

# Rony et al. 2021: the constraint is a margin of 1e-4; every 10 steps the penalty grows by 1.2 where nothing was found
# and the margin did not fall below 95 % of what it was; averages decay by 0.9; the rate ends at a hundredth.
MARGIN, EVERY, ENOUGH, GROW, DECAY, RATE_END = 1e-4, 10, 0.95, 1.2, 0.9, 0.01
LEAST, MOST, TINY = 1e-6, 1e12, 1e-8


@dataclass(frozen=True)
class State(AttackState):
    """Iterate; multiplier and penalty; mean square and momentum; the constraint at the last check; first success."""

    t: Labels
    x: Points
    mu: Scalars
    rho: Scalars
    square: Points
    velocity: Points
    last: Scalars
    first: Labels


@dataclass(frozen=True)
class ALMA(Attack[State]):
    """Minimises distance plus an augmented Lagrangian of the margin, with normalised momentum steps.

    Method: the penalty P(v) of the constraint v (the negative loss plus 1e-4) is μv + μρv² + ρ²v³/6 for v ≥ 0 and
    μv / (1 − ρv) below; μ is a running mean of P's derivative, ρ grows while nothing is found. Steps divide by a
    running root mean square and carry momentum; their rate decays from the first success on. Cost per step: one
    forward, one backward; one more of each for the last point. Reference: Rony et al. 2021, "Augmented Lagrangian
    adversarial attacks", with its second penalty. Different here: in L1 a coordinate that would change sign stops at
    zero and rests there while the penalty pulls less than the distance does, so that results are sparse; 1e-4 is added
    to the ratio, not to the margin it divides; a point counts when it is misclassified, by however little; with fewer
    than four classes the plain margin takes the place of DLR.
    Limits: needs hundreds of steps; a short budget leaves the multiplier unsettled and distances too large. Blind
    where gradients are masked.

    >>> ALMA(steps=100).queries
    101
    """

    steps: int = 1000
    rate: float = 0.1
    loss: str = "dlr"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (L2, L1)

    def __post_init__(self) -> None:
        _check.a_loss(self.loss)
        _check.positive(steps=self.steps, rate=self.rate)

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "alma" + aimed(self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        one = torch.ones_like(ball.eps)
        x, zero = begin(p, ball), torch.zeros_like(p.x)
        never = torch.full_like(p.y, self.queries)
        return State(torch.zeros_like(p.y), x, one, one, torch.ones_like(zero), zero, torch.inf * one, never)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Update penalty and multiplier, then descend."""
        v = MARGIN - ahead(a)
        first = torch.where(fooled(a, p), torch.minimum(s.first, s.t), s.first)
        check = (s.t > 0) & ((s.t + 1) % EVERY == 0)
        stuck = check & (first >= self.queries) & ~(v < ENOUGH * s.last)
        rho = torch.where(stuck, s.rho * GROW, s.rho)
        pull = _derivative(v, rho, s.mu)
        mu = torch.where(s.t > 0, (DECAY * s.mu + (1 - DECAY) * pull).clamp(LEAST, MOST), s.mu)
        pull = _derivative(v, rho, mu)
        d, away = s.x - p.x, rows(pull, s.x) * -free(a.gradient, ball)
        towards = d.sign() if ball.norm.sparse else 2 * d
        g = torch.where(rows(s.t > 0, d), towards + away, away)
        square = DECAY * s.square + (1 - DECAY) * g.square()
        velocity = DECAY * s.velocity + g / (square.sqrt() + TINY)
        new = d - rows(self._rate(s.t, first), d) * velocity
        if ball.norm.sparse:
            held = (d * new < 0) | ((d == 0) & (away.abs() <= 1) & rows(s.t > 0, d))
            new, velocity = torch.where(held, 0.0, new), torch.where(held, 0.0, velocity)
        last = torch.where(check, v, s.last)
        return State(s.t + 1, moved(p, new, ball), mu, rho, square, velocity, last, first)

    def _rate(self, t: Labels, first: Labels) -> Scalars:
        """Constant until the first success, then down to a hundredth at the end."""
        found = first < self.queries
        share = ((t - first).clamp(min=0) * self.steps) // (self.steps - first).clamp(min=1)
        return exponential(torch.where(found, share, 0), self.steps, self.rate, self.rate * RATE_END)


def _derivative(v: Scalars, rho: Scalars, mu: Scalars) -> Scalars:
    """How fast the penalty grows with the constraint."""
    above = mu + 2 * mu * rho * v + rho.square() * v.square() / 2
    below = mu / (1 - rho * v.clamp(max=0)).square()
    return torch.where(v >= 0, above, below)
