"""Auto-PGD: gradient steps with momentum and a step size that halves when progress stalls."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from brinell.attacks._common import PointState, step_with_momentum
from brinell.attacks._parameters import check_loss, check_whole
from brinell.attacks.gradient.apgd_l1 import SparseAPGD, phase_lengths
from brinell.core.attack import Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops.device_cache import table
from brinell.ops.rowwise import number_where, rows, where
from brinell.ops.types import Mask, Points, Scalars

# Croce & Hein 2020, sec. 3: first checkpoint after 22 % of the steps; each period is 3 % shorter, but at least 6 %.
FIRST, SHRINK, FLOOR = 0.22, 0.03, 0.06
MOMENTUM = 0.75
QUIRKS = (None, "autoattack")


def checkpoints(steps: int) -> tuple[int, ...]:
    """Return the checkpoints as the paper defines them: the iterations ⌈p_j N⌉, with N = `steps`.

    >>> checkpoints(100), checkpoints(20)
    ((22, 41, 57, 70, 80, 87, 93, 99), (5, 9, 12, 14, 16, 18, 19, 20))
    """
    last, here, out = 0.0, FIRST, []
    while here <= 1 + 1e-9:
        out.append(math.ceil(round(here * steps, 9)))
        last, here = here, here + max(here - last - SHRINK, FLOOR)
    return tuple(dict.fromkeys(out))


def checkpoints_autoattack(steps: int) -> tuple[int, ...]:
    """Return the checkpoints of AutoAttack's code, which differ from the paper's unless `steps` is a multiple of 100.

    >>> checkpoints_autoattack(20)[:5]
    (4, 7, 9, 10, 11)
    """
    period, shrink, floor = (max(int(share * steps), 1) for share in (FIRST, SHRINK, FLOOR))
    here, out = period, []
    while here <= steps:
        out.append(here)
        period = max(period - shrink, floor)
        here += period
    return tuple(out)


@table
def _table(steps: int, quirks: str | None, device: torch.device) -> Tensor:
    """Return one number per iteration: at checkpoints the steps since the previous checkpoint, elsewhere 0."""
    marks = checkpoints_autoattack(steps) if quirks else checkpoints(steps)
    table = torch.zeros(steps + 2, dtype=torch.float32, device="cpu")
    for last, here in pairwise((0, *marks)):
        table[here] = here - last
    return table.to(device)


@dataclass(frozen=True)
class APGDState(PointState):
    """State of APGD: current point, previous point, best point with its gradient and loss, counters for checkpoints."""

    x_prev: Points
    x_best: Points
    g_best: Points
    f_best: Scalars
    f_prev: Scalars
    f_check: Scalars
    step: Scalars
    ups: Scalars
    halved: Mask


StateT = TypeVar("StateT", bound=APGDState)


@dataclass(frozen=True)
class APGD(Attack[Any]):
    """PGD with an adaptive step size: 2 eps at first; when progress stalls, halve it and resume at the best point.

    Method: a gradient step plus momentum 0.75. At checkpoints the step is halved if less than the share ρ of the steps
    since the last checkpoint increased the loss, or if neither step size nor best loss changed since then. L1 uses the
    scheme of `apgd_l1`; with `larger_eps` it first runs at 3 eps and 2 eps. `quirks="autoattack"` follows AutoAttack's
    code where it differs from the paper: integer checkpoints; ≤ instead of <; the loss after the first step is compared
    with 0, not with the start's loss; no halving for an unchanged best loss at the first checkpoint; L2 projects by
    scaling, then clipping; in L1 rounding errors and an explicit start count as changed coordinates, their number is
    rounded up, and steps push against the box. Cost per step: one forward and one backward pass; one more of each for
    the start. Reference: Croce & Hein 2020 (Linf, L2) and 2021 (L1).
    Limits: weak on cross-entropy with saturated logits (tiny gradients), on DLR below four classes, and wherever
    gradients are masked, shattered or random. Follow it with a black-box attack.

    >>> APGD(steps=100, loss="dlr").queries
    101
    """

    steps: int = 100
    loss: str = "ce"
    rho: float = 0.75
    quirks: str | None = None
    larger_eps: bool = False

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        one_of("quirks", self.quirks, QUIRKS)

    @property
    def name(self) -> str:
        return f"apgd-{self.loss}"

    @property
    def queries(self) -> int:
        """The number of steps plus one for the start; with `larger_eps` plus one for the start of each phase."""
        return self.steps + (len(phase_lengths(self.steps)) if self.larger_eps else 1)

    @property
    def leaves_ball(self) -> bool:
        return self.larger_eps

    def _sparse(self) -> SparseAPGD:
        return SparseAPGD(self.steps, self.larger_eps, quirks=self.quirks is not None)

    def init(self, p: Batch, ball: Ball) -> Any:
        """Return the state at AutoAttack's random start or at the explicit start."""
        if ball.norm.sparse:
            return self._sparse().init(p, ball)
        if self.larger_eps:
            raise PlanError(
                expected="a threat in L1, the only norm for larger_eps",
                got=ball.norm.name,
                remedy="Leave larger_eps out for this norm.",
            )
        x = ball.start(p.x, p.key) if p.start is None else ball.retract(p.x, p.start)
        low = torch.full_like(ball.eps, -torch.inf)
        return APGDState(
            t=torch.zeros_like(p.y), x=x, x_prev=x, x_best=x, g_best=torch.zeros_like(x), f_best=low, f_prev=low,
            f_check=low, step=2 * ball.eps, ups=torch.zeros_like(low),
            # The paper's checkpoint w_0 = 0 has no halving; AutoAttack's code counts it as one with halving.
            halved=torch.full_like(low, self.quirks is not None, dtype=torch.bool),
        )  # fmt: skip

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        if ball.norm.sparse:
            return self._sparse().step(s, a, p, ball)
        s, x, grad = self.resume(s, a)
        project = ball.retract if self.quirks else ball.project
        move = rows(s.step, x) * ball.steepest(grad)
        ahead = step_with_momentum(project, p.x, x, s.x_prev, move, number_where(s.t == 0, 1.0, MOMENTUM))
        return replace(s, t=s.t + 1, x=ahead, x_prev=x)

    def resume(self, s: StateT, a: Response) -> tuple[StateT, Points, Points]:
        """Return the state after a response, and the point and the gradient with which the attack goes on.

        These are the current ones, or the best ones in rows whose step was halved.
        """
        return self._checkpoint(self._observe(s, a), a.gradient)

    def _observe(self, s: StateT, a: Response) -> StateT:
        first, better = s.t == 0, a.loss > s.f_best
        previous = torch.where(s.t == 1, 0.0, s.f_prev) if self.quirks else s.f_prev
        return replace(
            s,
            x_best=where(better, s.x, s.x_best),
            g_best=where(better, a.gradient, s.g_best),
            f_best=torch.where(better, a.loss, s.f_best),
            f_check=torch.where(first, a.loss, s.f_check),
            ups=s.ups + ((a.loss > previous) & ~first),
            f_prev=a.loss,
        )

    def _checkpoint(self, s: StateT, grad: Points) -> tuple[StateT, Points, Points]:
        """Return state, point and gradient; rows that stall at a checkpoint halve the step and take the best point."""
        period = _table(self.steps, self.quirks, s.t.device)[s.t]
        due = period > 0
        few = s.ups <= self.rho * period if self.quirks else s.ups < self.rho * period
        halve = due & (few | (~s.halved & (s.f_check >= s.f_best)))
        x, g = where(halve, s.x_best, s.x), where(halve, s.g_best, grad)
        s = replace(
            s,
            step=torch.where(halve, s.step / 2, s.step),
            halved=torch.where(due, halve, s.halved),
            f_check=torch.where(due, s.f_best, s.f_check),
            ups=torch.where(due, 0.0, s.ups),
        )
        return s, x, g
