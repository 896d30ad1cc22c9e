"""APGD for norms with sparse steps (L1): the sparsity of the best point decides how many coordinates move."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks._common import PointState
from brinell.core.attack import Batch, Response
from brinell.core.threat import HI, LO, Ball
from brinell.ops.device_cache import table
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points, Scalars

# Croce & Hein 2021: steps move a fifth of the coordinates at first, then 1/1.5 of those that the best point changed.
# Checkpoints every 4 % of the steps: back to a full step when the support shrank by 5 %, else the step is divided by
# 1.5, down to eps / 10.
SHARE, THINNER, PERIOD, SHRANK, SLOWER, SMALLEST = 0.2, 1.5, 0.04, 0.95, 1.5, 10.0
# Changes up to this size are rounding errors.
ROUNDING = 2.0**-20
# The larger-eps schedule: radii as multiples of eps, and the share of the steps at each of the first two.
RADII, PHASE_SHARE = (3.0, 2.0, 1.0), 0.3


def phase_lengths(steps: int, quirks: bool = False) -> tuple[int, ...]:
    """Return the numbers of steps in the phases at 3 eps, 2 eps and eps. The last is largest, except with `quirks`.

    >>> phase_lengths(100), phase_lengths(7), phase_lengths(7, quirks=True)
    ((30, 30, 40), (2, 2, 3), (3, 3, 1))
    """
    most = steps // 2 if quirks else steps // 3
    part = min(math.ceil(round(PHASE_SHARE * steps, 9)), most)
    return (part, part, steps - 2 * part)


@table
def _timetable(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Return four tables, one entry per response: the radius in units of eps, the response's index within its phase,
    whether it ends the phase, and whether it is a checkpoint.
    """
    radii, local, ends, due = [], [], [], []
    for n, radius in zip(lengths, RADII[-len(lengths) :], strict=True):
        period = max(int(PERIOD * n), 1)
        for u in range(n + 1):
            radii.append(radius)
            local.append(u)
            ends.append(u == n)
            due.append(u > 0 and u % period == 0)
    # One more entry for rows that have used all their queries.
    tables = ((radii, torch.float32), (local, torch.long), (ends, torch.bool), (due, torch.bool))
    return tuple(torch.tensor([*v, v[-1]], dtype=dtype, device=device) for v, dtype in tables)


@dataclass(frozen=True)
class SparseAPGDState(PointState):
    """State of SparseAPGD, per row: current point, best point with its gradient and loss, and step size.

    `density` is the share of coordinates that a step moves, `support` the number that differed from the clean point at
    the last checkpoint.
    """

    x_best: Points
    g_best: Points
    f_best: Scalars
    step: Scalars
    density: Scalars
    support: Scalars


def _unblocked(g: Points, x: Points) -> Points:
    """Return g with zeros where a step would leave the box, so that coordinates on a bound do not use up the step."""
    # A product with 0 or 1 is exact, and faster than a choice.
    return g * ~(((x >= HI) & (g > 0)) | ((x <= LO) & (g < 0)))


@dataclass(frozen=True)
class SparseAPGD:
    """The scheme that `APGD` uses in L1. `quirks` follows AutoAttack's code (see `APGD`)."""

    steps: int
    larger_eps: bool
    quirks: bool

    @property
    def _lengths(self) -> tuple[int, ...]:
        return phase_lengths(self.steps, self.quirks) if self.larger_eps else (self.steps,)

    def _ball(self, ball: Ball, t: Labels) -> Ball:
        table = _timetable(self._lengths, t.device)[0]
        # Rows that have used all their queries are still stepped until they are replaced.
        factor = table[t.clamp(max=len(table) - 1)]
        return replace(ball, eps=ball.eps * factor)

    def _changed(self, x: Points, x0: Points) -> Scalars:
        """Return, per row, how many coordinates of x differ from x0; rounding errors count only with `quirks`."""
        least = 0.0 if self.quirks else ROUNDING
        return flat((x - x0).abs() > least).sum(1).to(x.dtype)

    def _thinner(self, support: Scalars, x: Points) -> Scalars:
        """Return the share of coordinates that the next steps move: `support` / 1.5 coordinates, at least one.

        The count is rounded down. AutoAttack's code rounds up, so its count never falls from two to one.
        """
        n = flat(x).shape[1]
        if self.quirks:
            # Two divisions in this order: for integer counts the last bit decides whether one more coordinate moves.
            return support / n / THINNER
        # Half a coordinate less, so that converting the count to a share of n and back does not change it.
        return ((support / THINNER).floor().clamp(min=1) - 0.5) / n

    def init(self, p: Batch, ball: Ball) -> SparseAPGDState:
        """Return the state at a Gaussian random point projected on the first phase's ball, or at the explicit start."""
        t = torch.zeros_like(p.y)
        around = self._ball(ball, t)
        if p.start is None:
            x = self._random(p, around)
        else:
            x = p.start if self.quirks else around.project(p.x, p.start)
        full = torch.full_like(ball.eps, flat(x).shape[1])
        known = self.larger_eps or (self.quirks and p.start is not None)
        support = self._changed(x, p.x) if known else full
        density = self._thinner(support, x) if known else torch.full_like(full, SHARE)
        low = torch.full_like(full, -torch.inf)
        return SparseAPGDState(t, x, x, torch.zeros_like(x), low, around.eps, density, support)

    def _random(self, p: Batch, around: Ball) -> Points:
        if not (self.quirks and self.larger_eps):
            return around.start(p.x, p.key)
        noise = around.norm.start(p.key, tuple(p.x.shape[1:]), around.eps)
        x = p.x + (noise if around.mask is None else noise * around.mask)
        return self._corrected(around, p.x, x, x)

    def step(self, s: SparseAPGDState, a: Response, p: Batch, ball: Ball) -> SparseAPGDState:
        """Return the next state: record the response, adapt at checkpoints, then step or enter the next phase."""
        local, ends, due = (table[s.t] for table in _timetable(self._lengths, s.t.device)[1:])
        better = (a.loss > s.f_best) | (local == 0)
        s = replace(
            s,
            x_best=where(better, s.x, s.x_best),
            g_best=where(better, a.gradient, s.g_best),
            f_best=torch.where(better, a.loss, s.f_best),
        )
        around = self._ball(ball, s.t)
        s, x, grad = self._checkpoint(s, a.gradient, p, around, due)
        if not self.quirks:
            grad = _unblocked(grad, x)
        moved = self._project(around, p.x, x + self._move(grad, s, around))
        s = replace(s, t=s.t + 1, x=moved)
        return self._enter(s, p, ball, ends) if self.larger_eps else s

    def _move(self, grad: Points, s: SparseAPGDState, around: Ball) -> Points:
        unit = around.steepest(grad, s.density)
        if not self.quirks:
            return rows(s.step, unit) * unit
        # One division shares the step among the coordinates. Multiplying by the reciprocal differs in the last bit,
        # which is where AutoAttack's rounding errors come from.
        signs = unit.sign()
        return rows(s.step, signs) * signs / rows(flat(signs).abs().sum(1).clamp(min=1), signs)

    def _project(self, around: Ball, x0: Points, x: Points) -> Points:
        # AutoAttack's code splits the point into x0 and a displacement and adds them again to correct it.
        return self._corrected(around, x0, x, x0 + (x - x0)) if self.quirks else around.project(x0, x)

    def _corrected(self, around: Ball, x0: Points, x: Points, base: Points) -> Points:
        """Return x projected as in AutoAttack's code: the correction is added to `base`, a rounded copy of x.

        Rounding then leaves errors of one unit in the last place where the result should equal x0. AutoAttack's code
        counts these errors as changed coordinates, so they are needed to reproduce its sparsity and trajectory.
        """
        exact = around.project(x0, x)
        return (base + ((exact - x0) - (x - x0))).clamp(LO, HI) if self.quirks else exact

    def _checkpoint(
        self, s: SparseAPGDState, grad: Points, p: Batch, around: Ball, due: Tensor
    ) -> tuple[SparseAPGDState, Points, Points]:
        support = self._changed(s.x_best, p.x)
        sparser = support / s.support < SHRANK
        slower = torch.maximum(s.step / SLOWER, around.eps / SMALLEST)
        back = due & sparser
        x, g = where(back, s.x_best, s.x), where(back, s.g_best, grad)
        s = replace(
            s,
            step=torch.where(due, torch.where(sparser, around.eps, slower), s.step),
            density=torch.where(due, self._thinner(support, x), s.density),
            support=torch.where(due, support, s.support),
        )
        return s, x, g

    def _enter(self, s: SparseAPGDState, p: Batch, ball: Ball, ends: Tensor) -> SparseAPGDState:
        """Return the state in which rows whose phase ended start the next phase at the projected best point."""
        around = self._ball(ball, s.t)
        x = self._corrected(around, p.x, s.x_best, s.x_best)
        support = self._changed(x, p.x)
        return replace(
            s,
            x=where(ends, x, s.x),
            step=torch.where(ends, around.eps, s.step),
            density=torch.where(ends, self._thinner(support, x), s.density),
            support=torch.where(ends, support, s.support),
        )
