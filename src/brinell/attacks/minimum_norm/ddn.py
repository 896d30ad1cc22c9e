"""Decoupled direction and norm: a point on a sphere whose radius shrinks by a fixed share or grows by it."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import FLAT, aimed, begin, cosine, fooled, free, moved, unit
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import L2, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points, Scalars

# Rony et al. 2019: steps from 1 to 0.01 along a cosine, first radius 1.
STEP, STEP_END, FIRST = 1.0, 0.01, 1.0


@dataclass(frozen=True)
class State(AttackState):
    """The iterate, the displacement it was made from, and the radius."""

    t: Labels
    x: Points
    d: Points
    eps: Scalars


@dataclass(frozen=True)
class DDN(Attack[State]):
    """Gradient steps of fixed length on a sphere; its radius is multiplied by 1 − `gamma` at adversarial points.

    Method: d ← d + α ∇/‖∇‖ on the cross-entropy, radius × (1 − γ) where misclassified and × (1 + γ) elsewhere,
    d ← radius · d / ‖d‖, then the box. Cost per step: one forward, one backward; one more of each for the last point.
    Reference: Rony et al. 2019, "Decoupling direction and norm for efficient gradient-based L2 adversarial attacks".
    Different here: no rounding to 8 bits; where the gradient vanishes the direction is keyed noise of length 1; no
    radius is larger than the box is wide.
    Limits: is for L2 alone, and its radius only moves by a fixed rate: short budgets end far from the boundary when
    the clean margin is large.

    >>> DDN(steps=50).queries
    51
    """

    steps: int = 1000
    gamma: float = 0.05
    loss: str = "ce"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        _check.a_loss(self.loss)
        _check.positive(steps=self.steps, gamma=self.gamma)
        if self.gamma >= 1:
            raise PlanError(expected="gamma below 1", got=f"gamma = {self.gamma}", remedy="Leave it out for 0.05.")

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "ddn" + aimed(self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, or where told."""
        x = begin(p, ball)
        eps = torch.minimum(torch.full_like(ball.eps, FIRST), ball.span(p.x))
        return State(torch.zeros_like(p.y), x, x - p.x, eps)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Change the radius, step along the gradient, return to the sphere and the box."""
        g = free(a.gradient, ball)
        lost = flat(g).square().sum(1).sqrt() < FLAT
        noise = free(rng.normal(rng.fold(p.key, s.t), tuple(g.shape[1:])), ball)
        d = s.d + rows(cosine(s.t, self.steps, STEP, STEP_END), g) * unit(where(lost, noise, g))
        factor = torch.where(fooled(a, p), 1 - self.gamma, 1 + self.gamma)
        eps = torch.minimum(s.eps * factor, ball.span(p.x))
        x = moved(p, rows(eps, d) * unit(d), ball)
        return State(s.t + 1, x, x - p.x, eps)
