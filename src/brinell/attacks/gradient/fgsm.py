"""Fast gradient sign method."""

from dataclasses import dataclass

import torch

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.rowwise import rows
from brinell.ops.types import Labels, Points


@dataclass(frozen=True)
class State(AttackState):
    """The point to ask about."""

    t: Labels
    x: Points


@dataclass(frozen=True)
class FGSM(Attack[State]):
    """One step of full length along the steepest direction of the norm.

    Method: x + eps · steepest(∇loss(x)), projected. Cost: two forwards and two backwards (the second looks at the
    result). Reference: Goodfellow, Shlens & Szegedy 2015.
    Limits: stronger attacks almost always find more: one step follows a curved loss badly, and models trained
    against it can mask it (catastrophic overfitting).

    >>> FGSM().queries
    2
    """

    loss: str = "ce"
    density: float = 0.01
    queries = 2

    def __post_init__(self) -> None:
        _check.a_loss(self.loss)

    @property
    def name(self) -> str:
        """Method and loss."""
        return f"fgsm-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> State:
        """Start at the clean point, or where told."""
        return State(torch.zeros_like(p.y), p.x if p.start is None else ball.project(p.x, p.start))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """The full step."""
        x = s.x + rows(ball.eps, s.x) * ball.steepest(a.gradient, self.density)
        return State(s.t + 1, ball.project(p.x, x))
