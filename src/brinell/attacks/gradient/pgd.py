"""Projected gradient descent with steps of fixed length, with and without momentum."""

from dataclasses import dataclass

import torch

from brinell.attacks._common import PointState, start_in_ball, step_with_momentum
from brinell.attacks._parameters import check_loss, check_numbers, check_positive, check_whole
from brinell.core.attack import Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.rowwise import flat, number_where, rows
from brinell.ops.types import Points


@dataclass(frozen=True)
class PGDState(PointState):
    """State of PGD, per row: the current point and the accumulated direction."""

    direction: Points


@dataclass(frozen=True)
class PGD(Attack[PGDState]):
    """Steps of length `rel_step · eps` from a uniform random start. Every iterate is tested, not only the last one.

    Method: x ← P(x + rel_step · eps · steepest(g)), where g is the gradient or, with momentum μ, g ← μ g + ∇/‖∇‖₁. In
    L1 a step moves the share `density` of the coordinates. `MomentumPGD` has the momentum of Auto-PGD instead.
    Cost per step: one forward and one backward pass; one more of each for the start. Reference: Madry et al. 2018;
    momentum: Dong et al. 2018; sparse L1 steps: Tramèr & Boneh 2019.
    Limits: a badly chosen step size stalls or oscillates, and the attack does not notice. Cross-entropy vanishes on
    saturated logits. Do not use it as the only attack.

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
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rel_step=self.rel_step)

    @property
    def name(self) -> str:
        return f"{'mi-' if self.momentum else ''}pgd-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> PGDState:
        return PGDState(torch.zeros_like(p.y), start_in_ball(p, ball, self.random_start), torch.zeros_like(p.x))

    def step(self, s: PGDState, a: Response, p: Batch, ball: Ball) -> PGDState:
        g = a.gradient
        if self.momentum:
            g = self.momentum * s.direction + g / rows(flat(g).abs().sum(1) + 1e-12, g)
        x = s.x + self.rel_step * ball.eps_like(g) * ball.steepest(g, self.density)
        return PGDState(s.t + 1, ball.project(p.x, x), g)


@dataclass(frozen=True)
class MomentumPGDState(PointState):
    """State of MomentumPGD, per row: the current and the previous point."""

    x_prev: Points


@dataclass(frozen=True)
class MomentumPGD(Attack[MomentumPGDState]):
    """PGD steps of fixed length with the momentum of Auto-PGD: a part of the previous move is added to each step.

    Method: z = P(x + rel_step · eps · steepest(∇)), then x ← P(x + α (z − x) + (1 − α)(x − x_prev)); the first step is
    z itself. α = 1 is PGD without momentum. Every iterate is tested. Random starts are those of `PGD`.
    Cost per step: one forward and one backward pass; one more of each for the start. Reference: Croce & Hein 2020, eq.
    2 and sec. 3.2. `PGD(momentum=…)` is another momentum, which accumulates gradients (Dong et al. 2018).
    Limits: those of PGD. The step size stays fixed, so the loss often stops growing early; Auto-PGD adapts it.

    >>> MomentumPGD(steps=20, loss="dlr").name
    'momentum-pgd-dlr'
    """

    steps: int = 20
    rel_step: float = 0.25
    loss: str = "ce"
    alpha: float = 0.75
    random_start: bool = True
    density: float = 0.01

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rel_step=self.rel_step)
        check_numbers(0 <= self.alpha <= 1, "alpha between 0 and 1", alpha=self.alpha)

    @property
    def name(self) -> str:
        return f"momentum-pgd-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> MomentumPGDState:
        x = start_in_ball(p, ball, self.random_start)
        return MomentumPGDState(torch.zeros_like(p.y), x, x)

    def step(self, s: MomentumPGDState, a: Response, p: Batch, ball: Ball) -> MomentumPGDState:
        move = self.rel_step * ball.eps_like(s.x) * ball.steepest(a.gradient, self.density)
        x = step_with_momentum(ball.project, p.x, s.x, s.x_prev, move, number_where(s.t == 0, 1.0, self.alpha))
        return MomentumPGDState(s.t + 1, x, s.x)
