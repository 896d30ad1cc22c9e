"""Random search over subsets of coordinates, and what it shares with Square: schedule, state and moves per norm."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.norms import INSIDE, TINY, L1Norm, L2Norm, LinfNorm, Norm, inward
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points, Scalars

V = TypeVar("V")

# Andriushchenko et al. 2020, as AutoAttack runs it: iterations at which the share halves, whatever the number of steps.
HALVINGS = (11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001)


def stage(i: int) -> int:
    """How often the share of changed coordinates has been halved by iteration i.

    >>> [stage(i) for i in (0, 10, 11, 50, 51, 4001, 9999)]
    [0, 0, 1, 1, 2, 7, 9]
    """
    return bisect_right(HALVINGS, i)


def shares(steps: int, p0: float) -> tuple[float, ...]:
    """The shares of the stages that `steps` iterations reach.

    >>> shares(200, 0.8)
    (0.8, 0.4, 0.2)
    """
    return tuple(p0 / 2**k for k in range(stage(steps - 1) + 1))


def stages(steps: int) -> list[int]:
    """The stage of every iteration and of the two counts a row stands at once it has had all its answers."""
    return [stage(min(i, steps - 1)) for i in range(steps + 2)]


def check(steps: int, p0: float, loss: str) -> None:
    """Refuse impossible hyper-parameters."""
    _check.a_loss(loss)
    _check.positive(steps=steps, p0=p0)
    if p0 > 1:
        raise PlanError(expected="p0 at most 1, a share", got=f"p0 = {p0}", remedy="Leave it out to get 0.8.")


def for_norm(table: dict[type[Norm], V], norm: Norm, name: str) -> V:
    """What `table` holds for this norm, or a refusal."""
    if type(norm) not in table:
        raise PlanError(
            expected=f"a norm {name} has moves for ({', '.join(n.name for n in table)})",
            got=norm.name,
            remedy="Leave the attack out for this threat.",
        )
    return table[type(norm)]


@dataclass(frozen=True)
class State(AttackState):
    """The candidate, the best point and its loss."""

    t: Labels
    x: Points
    x_best: Points
    f_best: Scalars


def begin(p: Batch, x: Points) -> State:
    """Nothing answered yet; the first candidate is x."""
    low = torch.full((len(x),), -torch.inf, device=x.device)
    return State(torch.zeros_like(p.y), x, x, low)


def accept(s: State, a: Response) -> State:
    """The candidate becomes the best point where its loss is strictly larger."""
    better = a.loss > s.f_best
    return replace(s, x_best=where(better, s.x, s.x_best), f_best=torch.where(better, a.loss, s.f_best))


class Move(Protocol):
    """How a norm spends its budget on a set of coordinates."""

    def move(self, d: Points, signs: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """The change d with something new of the given signs on the set `a`, paid for by the set `b`: all (b, 1, n)."""

    def place(self, ball: Ball, x0: Points, d: Points) -> Points:
        """The allowed point at, or near, x0 + d, where d comes from `move`."""


@dataclass(frozen=True)
class Flip:
    """Every coordinate of `a` goes to a face of the ball; the others cost nothing."""

    def move(self, d: Points, signs: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """Two eps along the sign: from anywhere in the ball that reaches the face."""
        return torch.where(a, d + 2 * rows(eps, d) * signs, d)

    def place(self, ball: Ball, x0: Points, d: Points) -> Points:
        """Projection."""
        return ball.project(x0, x0 + d)


def _rescaled(ball: Ball, x0: Points, d: Points) -> Points:
    """On the sphere, then clipped to the box: what AutoAttack does in L2."""
    if ball.mask is not None:
        d = d * ball.mask
    return ball.retract(x0, x0 + rows(ball.eps / (ball.norm.size(d) + TINY), d) * d)


def _projected(ball: Ball, x0: Points, d: Points) -> Points:
    return ball.project(x0, x0 + d)


def _clipped(ball: Ball, x0: Points, d: Points) -> Points:
    """The projection of a change that exceeds eps by rounding only: nothing is left to do but to clip it."""
    scale = (ball.eps * INSIDE / (ball.norm.size(d) + TINY)).clamp(max=1)
    return inward(x0, rows(scale, d) * d).clamp(*ball.bounds(x0))


@dataclass(frozen=True)
class Transfer:
    """The change of two sets is taken away and put on the first, mixed with something new; unused budget is added.

    `measure` is |·|^p, additive over coordinates, `root` its inverse; `amount` turns a channel's measure into the size
    of what it gets, given the number of channels. `put` brings any change into ball and box, `trim` one whose size is
    eps already, as it is after a move of a single channel.
    """

    measure: Callable[[Tensor], Tensor]
    root: Callable[[Tensor], Tensor]
    amount: Callable[[Tensor, int], Tensor]
    put: Callable[[Ball, Points, Points], Points]
    trim: Callable[[Ball, Points, Points], Points]

    def size(self, d: Points) -> Tensor:
        """The norm of every channel."""
        return self.root(self.measure(d).sum(2, keepdim=True))

    def move(self, d: Points, signs: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """Signs of equal size on `a`, mixed with what is there."""
        bump = torch.where(a, signs, 0.0)
        return self.mix(d, bump / (self.size(bump) + TINY), a, b, eps)

    def mix(self, d: Points, bump: Points, a: Tensor, b: Tensor, eps: Scalars) -> Points:
        """The same for a bump that is zero outside `a` and has norm 1 in every channel."""
        channels = d.shape[1]
        both, old, mass = a | b, torch.where(a, d, 0.0), self.measure(d)
        unused = (self.measure(eps) - flat(mass).sum(1)).clamp(min=0) / channels
        freed = torch.where(both, mass, 0.0).sum(2, keepdim=True)
        new = bump + old / (self.size(old) + TINY)
        new = new * (self.amount(rows(unused, d) + freed, channels) / (self.size(new) + TINY))
        # `new` is zero outside `a`, so this also clears `b`.
        return torch.where(both, new, d)

    def place(self, ball: Ball, x0: Points, d: Points) -> Points:
        """Into the box; the ball is kept, since `move` gives all coordinates as one channel."""
        return self.trim(ball, x0, d)


L2_MOVE = Transfer(torch.square, torch.sqrt, lambda m, channels: m.sqrt(), _rescaled, _rescaled)
# In L1 the published code gives every channel the image's whole budget and lets the projection decide.
L1_MOVE = Transfer(torch.abs, torch.clone, lambda m, channels: m * channels, _projected, _clipped)
MOVES: dict[type[Norm], Move] = {LinfNorm: Flip(), L2Norm: L2_MOVE, L1Norm: L1_MOVE}


@table
def _share_table(steps: int, p0: float, device: torch.device) -> Tensor:
    share = shares(steps, p0)
    return torch.tensor([share[k] for k in stages(steps)], device=device)


@dataclass(frozen=True)
class RandomSearch(Attack[State]):
    """Square's search for inputs that are not images; a substitute of our own, not the published method.

    Method: Square's schedule, but instead of square windows a random subset of round(p·n) coordinates (of those the
    mask leaves free), each with a random sign. Linf: those coordinates go to a face of the ball. L2 and L1: their
    change and that of a second subset of the same size is put on the first, mixed with the signs. A candidate is kept
    if its loss is strictly larger. Cost per step: one forward; one more for the start. Reference: none; after
    Andriushchenko et al. 2020, who rely on the squares because convolutional networks are sensitive to them.
    Limits: finds little in high dimension; it is a floor under other attacks, not an attack to rely on.

    >>> RandomSearch(steps=1000).queries
    1001
    """

    steps: int = 5000
    p0: float = 0.8
    loss: str = "margin"
    name = "random-search"
    requires = Requires.LOGITS

    def __post_init__(self) -> None:
        check(self.steps, self.p0, self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """A random direction of full length (a corner in Linf), or where told."""
        for_norm(MOVES, ball.norm, self.name)
        if p.start is not None:
            return begin(p, ball.project(p.x, p.start))
        noise = rng.normal(rng.fold(p.key, 0), tuple(p.x.shape[1:]))
        return begin(p, ball.project(p.x, p.x + rows(ball.eps, p.x) * ball.steepest(noise, self.p0)))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Keep the better point, propose a change on a fresh subset."""
        s = accept(s, a)
        moves, key = for_norm(MOVES, ball.norm, self.name), rng.fold(p.key, s.t + 1)
        d = flat(s.x_best - p.x)[:, None]
        first, second = self._subsets(rng.fold(key, 1), d.shape[2], s.t, ball)
        signs = rng.signs(rng.fold(key, 2), (1, d.shape[2]))
        d = moves.move(d, signs, first, second, ball.eps)
        return replace(s, t=s.t + 1, x=moves.place(ball, p.x, d.view_as(p.x)))

    def _subsets(self, key: Tensor, n: int, t: Labels, ball: Ball) -> tuple[Tensor, Tensor]:
        """Two disjoint random subsets of round(p·n) coordinates each (the second may be smaller), as (b, 1, n)."""
        lot = rng.uniform(key, (n,))
        free = torch.full_like(t, n)
        if ball.mask is not None:
            # Coordinates that may not change draw the last places.
            lot, free = torch.where(ball.mask.reshape(-1), lot, 2.0), ball.mask.sum().expand_as(t)
        k = (_share_table(self.steps, self.p0, t.device)[t] * free).round().long().clamp(min=1)
        last = torch.stack([k, torch.minimum(2 * k, free.clamp(min=1))], 1) - 1
        cut = lot.sort(dim=1).values.gather(1, last)
        first = lot <= cut[:, :1]
        return first[:, None], ((lot <= cut[:, 1:]) & ~first)[:, None]
