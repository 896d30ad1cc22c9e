"""Random search over subsets of coordinates, and the schedule, state and moves shared with Square."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from brinell.attacks._common import PointState
from brinell.attacks._parameters import check_loss, check_numbers, check_positive, check_whole
from brinell.core.attack import Attack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.norms import INSIDE, TINY, L1Norm, L2Norm, LinfNorm, Norm, inward
from brinell.ops.rowwise import flat, rows, sorted_rows, where
from brinell.ops.types import Keys, Labels, Points, Scalars

V = TypeVar("V")

# Andriushchenko et al. 2020, as in AutoAttack: the share halves at these iterations, whatever the number of steps.
HALVINGS = (11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001)


def stage(i: int) -> int:
    """Return how often the share of changed coordinates has been halved by iteration i.

    >>> [stage(i) for i in (0, 10, 11, 50, 51, 4001, 9999)]
    [0, 0, 1, 1, 2, 7, 9]
    """
    return bisect_right(HALVINGS, i)


def shares(steps: int, p0: float) -> tuple[float, ...]:
    """Return the share of coordinates that a candidate changes after 0, 1, … halvings within `steps` iterations.

    >>> shares(200, 0.8)
    (0.8, 0.4, 0.2)
    """
    return tuple(p0 / 2**k for k in range(stage(steps - 1) + 1))


def stages(steps: int) -> list[int]:
    """Return the number of halvings at every iteration; two more entries serve rows that have used all queries."""
    return [stage(min(i, steps - 1)) for i in range(steps + 2)]


def for_norm(table: dict[type[Norm], V], norm: Norm, name: str) -> V:
    """Return the entry of `table` for this norm; refuse a norm that the attack `name` does not support."""
    if type(norm) not in table:
        raise PlanError(
            expected=f"a norm that {name} supports ({', '.join(n.name for n in table)})",
            got=norm.name,
            remedy=f"Leave {name} out of the plan for this threat.",
        )
    return table[type(norm)]


@dataclass(frozen=True)
class RandomSearchState(PointState):
    """State of a random search, per row: the candidate to query next, the best point so far, and its loss."""

    x_best: Points
    f_best: Scalars


@dataclass(frozen=True)
class SearchAttack(Attack[RandomSearchState]):
    """Base class of random searches: `step` accepts a candidate if its loss is strictly larger than the best loss."""

    steps: int = 5000
    p0: float = 0.8
    loss: str = "margin"
    requires = Requires.LOGITS

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(p0=self.p0)
        check_numbers(self.p0 <= 1, "p0 at most 1, a share", p0=self.p0)

    def init(self, p: Batch, ball: Ball) -> RandomSearchState:
        x = self.first(p, ball) if p.start is None else ball.project(p.x, p.start)
        return RandomSearchState(torch.zeros_like(p.y), x, x, torch.full_like(ball.eps, -torch.inf))

    def step(self, s: RandomSearchState, a: Response, p: Batch, ball: Ball) -> RandomSearchState:
        better = a.loss > s.f_best
        x_best, f_best = where(better, s.x, s.x_best), torch.where(better, a.loss, s.f_best)
        x = self.candidate(x_best, s.t, rng.fold(p.key, s.t + 1), p, ball)
        return RandomSearchState(s.t + 1, x, x_best, f_best)

    def first(self, p: Batch, ball: Ball) -> Points:
        """Return the starting points for a batch without explicit starts."""
        raise NotImplementedError

    def candidate(self, x: Points, t: Labels, key: Keys, p: Batch, ball: Ball) -> Points:
        """Return the next candidate near the best point x, at each row's iteration t."""
        raise NotImplementedError


class Flip:
    """Random moves in Linf: `move` changes the displacement d on a set of coordinates; `place` projects x0 + d."""

    def move(self, d: Points, signs: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """Return d + 2 eps · signs on the coordinates `a`, which `place` projects to a face. Shapes: (rows, 1, n)."""
        return torch.where(a, d + 2 * rows(eps, d) * signs, d)

    def place(self, ball: Ball, x0: Points, d: Points) -> Points:
        return ball.project(x0, x0 + d)


def _rescaled(ball: Ball, x0: Points, d: Points) -> Points:
    """Return x0 + d, with d scaled to norm eps, clipped to the box, as AutoAttack does in L2."""
    d = ball.masked(d)
    return ball.retract(x0, x0 + rows(ball.eps / (ball.norm.size(d) + TINY), d) * d)


def _projected(ball: Ball, x0: Points, d: Points) -> Points:
    return ball.project(x0, x0 + d)


def _clipped(ball: Ball, x0: Points, d: Points) -> Points:
    """Return x0 + d clipped to the box, where d exceeds norm eps only by rounding and is scaled down to it."""
    scale = (ball.eps * INSIDE / (ball.norm.size(d) + TINY)).clamp(max=1)
    return inward(x0, rows(scale, d) * d).clamp(*ball.bounds(x0))


@dataclass(frozen=True)
class BudgetTransfer:
    """Random moves in L2 and L1: the coordinates `a` get a new displacement, with the budget of `a` and `b`.

    The unused budget is added to it. The budget of coordinates is the sum of `measure`, |·|^p, over them; `root` is the
    inverse of `measure`. `amount` converts the budget of a channel into the norm of its new displacement, given the
    number of channels. `put` moves any displacement into ball and box; `trim` does this for displacements whose
    norm exceeds eps only by rounding, as after a move with a single channel.
    """

    measure: Callable[[Tensor], Tensor]
    root: Callable[[Tensor], Tensor]
    amount: Callable[[Tensor, int], Tensor]
    put: Callable[[Ball, Points, Points], Points]
    trim: Callable[[Ball, Points, Points], Points]

    def size(self, d: Points) -> Tensor:
        """Return the norm of the displacement in every channel."""
        return self.root(self.measure(d).sum(2, keepdim=True))

    def move(self, d: Points, signs: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """Return d mixed with random `signs` on the coordinates `a` and with zeros on the coordinates `b`."""
        bump = torch.where(a, signs, 0.0)
        return self.mix(d, bump / (self.size(bump) + TINY), a, b, eps)

    def mix(self, d: Points, bump: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """Return d mixed with `bump` on `a` and zero on `b`; `bump` is zero outside `a`, of norm 1 in each channel."""
        channels = d.shape[1]
        both, old, mass = a | b, torch.where(a, d, 0.0), self.measure(d)
        unused = (self.measure(eps) - flat(mass).sum(1)).clamp(min=0) / channels
        freed = torch.where(both, mass, 0.0).sum(2, keepdim=True)
        new = bump + old / (self.size(old) + TINY)
        new = new * (self.amount(rows(unused, d) + freed, channels) / (self.size(new) + TINY))
        # `new` is zero outside `a`, so this also clears `b`.
        return torch.where(both, new, d)

    def place(self, ball: Ball, x0: Points, d: Points) -> Points:
        """Return x0 + d clipped to the box. d is in the ball, since `move` treats all coordinates as one channel."""
        return self.trim(ball, x0, d)


L2_MOVE = BudgetTransfer(torch.square, torch.sqrt, lambda m, channels: m.sqrt(), _rescaled, _rescaled)
# In L1 the published code gives every channel the whole budget of the image and then projects.
L1_MOVE = BudgetTransfer(torch.abs, torch.clone, lambda m, channels: m * channels, _projected, _clipped)
MOVES: dict[type[Norm], Flip | BudgetTransfer] = {LinfNorm: Flip(), L2Norm: L2_MOVE, L1Norm: L1_MOVE}


@table
def _share_table(steps: int, p0: float, device: torch.device) -> Tensor:
    share = shares(steps, p0)
    return torch.tensor([share[k] for k in stages(steps)], device=device, dtype=torch.float32)


@dataclass(frozen=True)
class RandomSearch(SearchAttack):
    """Square's random search for inputs that are not images. It is Brinell's substitute, not a published method.

    Method: as Square, but a random subset of round(p·n) of the n free coordinates replaces the square window, with a
    random sign per coordinate; p is the scheduled share. Linf: the subset moves to a face of the ball. L2 and L1: the
    budgets of this subset and of a second subset go to the first, mixed with the signs. A candidate is accepted if its
    loss is strictly larger. Cost per step: one forward pass; one more for the start. Reference: none; after
    Andriushchenko et al. 2020, who use squares because convolutional networks are sensitive to them.
    Limits: finds little in high dimension. Use it beside other attacks, not alone.

    >>> RandomSearch(steps=1000).queries
    1001
    """

    name = "random-search"

    def first(self, p: Batch, ball: Ball) -> Points:
        """Draw a random point at distance eps from the clean point (in Linf a corner of the ball), then project it."""
        noise = rng.normal(rng.fold(p.key, 0), tuple(p.x.shape[1:]))
        return ball.project(p.x, p.x + rows(ball.eps, p.x) * ball.steepest(noise, self.p0))

    def candidate(self, x: Points, t: Labels, key: Keys, p: Batch, ball: Ball) -> Points:
        moves, d = for_norm(MOVES, ball.norm, self.name), flat(x - p.x)[:, None]
        first, second = self._subsets(rng.fold(key, 1), d.shape[2], t, ball)
        d = moves.move(d, rng.signs(rng.fold(key, 2), (1, d.shape[2])), first, second, ball.eps)
        return moves.place(ball, p.x, d.view_as(p.x))

    def _subsets(self, key: Tensor, n: int, t: Labels, ball: Ball) -> tuple[Tensor, Tensor]:
        """Draw two disjoint subsets per row of round(p·n) coordinates or, in the second, fewer: masks (rows, 1, n)."""
        draw = rng.uniform(key, (n,))
        free = torch.full_like(t, n)
        if ball.mask is not None:
            # Masked coordinates come last.
            draw, free = torch.where(ball.mask.reshape(-1), draw, 2.0), ball.mask.sum().expand_as(t)
        k = (_share_table(self.steps, self.p0, t.device)[t] * free).round().long().clamp(min=1)
        last = torch.stack([k, torch.minimum(2 * k, free.clamp(min=1))], 1) - 1
        cut = sorted_rows(draw).gather(1, last)
        first = draw <= cut[:, :1]
        return first[:, None], ((draw <= cut[:, 1:]) & ~first)[:, None]
