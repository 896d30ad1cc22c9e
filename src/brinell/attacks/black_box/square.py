"""Square attack: random search with square windows, one model answer per step and no gradients."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from brinell.attacks.black_box.random_search import (
    L1_MOVE,
    L2_MOVE,
    RandomSearch,
    State,
    Transfer,
    accept,
    begin,
    check,
    for_norm,
    shares,
)
from brinell.attacks.black_box.square_patterns import Sides, draw, pattern_table, span, stamp, tiling, timetable
from brinell.core.attack import Attack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import L1Norm, L2Norm, LinfNorm, Norm
from brinell.ops.rowwise import rows
from brinell.ops.types import Keys, Labels, Points


@dataclass(frozen=True)
class Course:
    """The numbers a proposal depends on besides the rows: how long the search is and how large its first window."""

    steps: int
    p0: float


class Proposal(Protocol):
    """What Square tries in one norm; x0, x: (b, c, h, w)."""

    def first(self, x0: Points, key: Keys, ball: Ball) -> Points:
        """The start."""

    def next(self, x0: Points, x: Points, t: Labels, key: Keys, ball: Ball, course: Course) -> Points:
        """A candidate near the best point x, at each row's own iteration t."""


def _signs(lots: Tensor) -> Tensor:
    """Draws of 0 or 1 (b, c) as −1.0 or 1.0."""
    return 2.0 * lots - 1


@dataclass(frozen=True)
class Windows:
    """Linf: stripes, then windows pushed to a face of the ball, with one sign per channel."""

    sides: Sides

    def first(self, x0: Points, key: Keys, ball: Ball) -> Points:
        """Vertical stripes: one sign per channel and column."""
        stripes = rng.signs(key, (x0.shape[1], 1, x0.shape[3]))
        return ball.project(x0, x0 + rows(ball.eps, x0) * stripes)

    def next(self, x0: Points, x: Points, t: Labels, key: Keys, ball: Ball, course: Course) -> Points:
        """Two eps up or down on one window, projected."""
        c, h, w = x0.shape[1:]
        table = timetable(self.sides, course.steps, course.p0, h, w, t.device)
        stage = table.stage[t]
        side, room = table.side[stage], table.room[stage]
        lots = draw(key, torch.cat([room, torch.full_like(room[:, :1], 2).expand(-1, c)], 1))
        push = 2 * ball.eps[:, None] * _signs(lots[:, 2:])
        tall, wide = span(lots[:, 0], side, h), span(lots[:, 1], side, w)
        column = push[:, :, None, None] * tall[:, None, :, None]
        return ball.project(x0, torch.addcmul(x, column, wide[:, None, None].to(x.dtype)))


@dataclass(frozen=True)
class Bumps:
    """L2 and L1: tiles of bumps, then the change of two windows is put on one, mixed with a bump of random sign."""

    moves: Transfer
    p: int
    decay: int
    sides: Sides

    def first(self, x0: Points, key: Keys, ball: Ball) -> Points:
        """Tiles of bumps, each with its own orientation, and its own sign in every channel."""
        c, h, w = x0.shape[1:]
        count, tile, both = tiling(h, w, self.decay, self.p, x0.device)
        turned = rng.integers(rng.fold(key, 1), 2, (count,))[:, tile] > 0
        signs = rng.signs(rng.fold(key, 2), (c, count))[:, :, tile]
        d = signs * torch.where(turned, both[1], both[0])[:, None]
        return self.moves.put(ball, x0, d.view_as(x0))

    def next(self, x0: Points, x: Points, t: Labels, key: Keys, ball: Ball, course: Course) -> Points:
        """Two windows of equal side, anywhere; the second is cleared."""
        c, h, w = x0.shape[1:]
        table = timetable(self.sides, course.steps, course.p0, h, w, t.device)
        sides = tuple(self.sides.side(share, h, w) for share in shares(course.steps, course.p0))
        stage = table.stage[t]
        side, room = table.side[stage], table.room[stage]
        coins = torch.full_like(room[:, :1], 2).expand(-1, 1 + c)
        lots = draw(key, torch.cat([room, room, coins], 1))
        patterns = pattern_table(sides, self.decay, self.p, t.device)
        block = stamp(patterns, stage, lots[:, 4], lots[:, 0], lots[:, 1], h, w)[:, None]
        cleared = (span(lots[:, 2], side, h)[:, :, None] & span(lots[:, 3], side, w)[:, None]).view(-1, 1, h * w)
        # A pattern has no zeros, so it marks its own window.
        new = _signs(lots[:, 5:])[:, :, None] * block
        d = self.moves.mix((x - x0).flatten(2), new, block != 0, cleared, ball.eps)
        place = self.moves.trim if c == 1 else self.moves.put
        return place(ball, x0, d.view_as(x0))


PROPOSALS: dict[type[Norm], Proposal] = {
    LinfNorm: Windows(Sides()),
    L2Norm: Bumps(L2_MOVE, p=2, decay=2, sides=Sides(least=3, odd=True)),
    L1Norm: Bumps(L1_MOVE, p=1, decay=4, sides=Sides(least=3, odd=True)),
}


@dataclass(frozen=True)
class Square(Attack[State]):
    """Random search over square windows: keeps a random change of one window where the loss strictly grows.

    Method: the window's share of the image starts at `p0` and halves at fixed iterations (11, 51, 201, 501, 1001, 2001,
    4001, …: not rescaled to `steps`, as in AutoAttack). Linf: start from vertical stripes, push a window to a face of
    the ball, one sign per channel. L2 and L1: start from tiles of bumps; the change in two windows is put on the first,
    mixed with a bump of random sign and orientation; L2 rescales and clips, L1 projects exactly. Unlike the reference,
    windows, signs and orientations are drawn per sample; a window may lie at every offset 0 … h − s (the reference
    never draws the last one); and every image size works (tiles are centred along both sides, at least one pixel
    wide). Cost per step: one forward; one more for the start. Reference: Andriushchenko et al. 2020; L1: Croce & Hein
    2021.
    Limits: gains slowly on models that are robust in earnest; its windows suit images, not tables or text.

    >>> Square().queries, Square(steps=100).name
    (5001, 'square')
    """

    steps: int = 5000
    p0: float = 0.8
    loss: str = "margin"
    name = "square"
    requires = Requires.LOGITS

    def __post_init__(self) -> None:
        check(self.steps, self.p0, self.loss)

    def without_images(self) -> RandomSearch:
        """What a plan runs instead where the inputs are not images."""
        return RandomSearch(self.steps, self.p0, self.loss)

    def init(self, p: Batch, ball: Ball) -> State:
        """Stripes or tiles, or where told."""
        proposal = for_norm(PROPOSALS, ball.norm, self.name)
        if p.x.ndim != 4:
            raise PlanError(
                expected="images of shape (channels, height, width) for Square",
                got=f"samples of shape {tuple(p.x.shape[1:])}",
                remedy=f"Use RandomSearch(steps={self.steps}), which has no windows.",
            )
        start = proposal.first(p.x, rng.fold(p.key, 0), ball) if p.start is None else ball.project(p.x, p.start)
        return begin(p, start)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Keep the better point, propose another window."""
        s = accept(s, a)
        proposal, course = for_norm(PROPOSALS, ball.norm, self.name), Course(self.steps, self.p0)
        x = proposal.next(p.x, s.x_best, s.t, rng.fold(p.key, s.t + 1), ball, course)
        return replace(s, t=s.t + 1, x=x)
