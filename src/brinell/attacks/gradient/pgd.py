"""Projected gradient descent with a fixed step, with and without momentum."""

from dataclasses import dataclass

import torch

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.rowwise import flat, rows
from brinell.ops.types import Labels, Points


@dataclass(frozen=True)
class State(AttackState):
    """The iterate and the accumulated direction."""

    t: Labels
    x: Points
    direction: Points


@dataclass(frozen=True)
class PGD(Attack[State]):
    """Steps of fixed length `rel_step · eps` from a uniform random start; every iterate counts, not only the last.

    Method: x ← P(x + rel_step · eps · steepest(g)), g the gradient or, with momentum μ, g ← μ g + ∇/‖∇‖₁. In L1 a step
    moves the share `density` of the coordinates. Cost per step: one forward, one backward; one more of each to look at
    the start. Reference: Madry et al. 2018; momentum: Dong et al. 2018; sparse L1 steps: Tramèr & Boneh 2019.
    Limits: a step size that does not fit stalls or jumps about, and nothing in it notices; cross-entropy vanishes on
    saturated logits. Never a sole attack.

    >>> PGD(steps=20).queries
    21
    """

    steps: int = 20
    rel_step: float = 0.25
    loss: str = "ce"
    momentum: float = 0.0
    random_start: bool = True
    density: float = 0.01

    def __post_init__(self) -> None:
        _check.a_loss(self.loss)
        _check.positive(steps=self.steps, rel_step=self.rel_step)

    @property
    def name(self) -> str:
        """Method and loss."""
        return f"{'mi-' if self.momentum else ''}pgd-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> State:
        """A uniform random start, the clean point, or where told."""
        if p.start is not None:
            x = ball.project(p.x, p.start)
        else:
            x = ball.inside(p.x, p.key) if self.random_start else p.x
        return State(torch.zeros_like(p.y), x, torch.zeros_like(p.x))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step of fixed length."""
        g = a.gradient
        if self.momentum:
            g = self.momentum * s.direction + g / rows(flat(g).abs().sum(1) + 1e-12, g)
        x = s.x + self.rel_step * rows(ball.eps, g) * ball.steepest(g, self.density)
        return State(s.t + 1, ball.project(p.x, x), g)
