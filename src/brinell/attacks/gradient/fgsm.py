"""The fast gradient sign method."""

from dataclasses import dataclass

import torch

from brinell.attacks._common import PointState, start_in_ball
from brinell.attacks._parameters import check_loss
from brinell.core.attack import Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.rowwise import rows


@dataclass(frozen=True)
class FGSM(Attack[PointState]):
    """One step of length eps along the steepest direction of the norm.

    Method: x + eps · steepest(∇loss(x)), projected. Cost: two forward and two backward passes (the second pair
    evaluates the result). Reference: Goodfellow, Shlens & Szegedy 2015.
    Limits: almost always weaker than iterated attacks, because one step follows a curved loss badly. Models trained
    against it can mask their gradients (catastrophic overfitting).

    >>> FGSM().queries
    2
    """

    loss: str = "ce"
    density: float = 0.01
    queries = 2

    def __post_init__(self) -> None:
        check_loss(self.loss)

    @property
    def name(self) -> str:
        return f"fgsm-{self.loss}"

    def init(self, p: Batch, ball: Ball) -> PointState:
        return PointState(torch.zeros_like(p.y), start_in_ball(p, ball, random=False))

    def step(self, s: PointState, a: Response, p: Batch, ball: Ball) -> PointState:
        x = s.x + rows(ball.eps, s.x) * ball.steepest(a.gradient, self.density)
        return PointState(s.t + 1, ball.project(p.x, x))
