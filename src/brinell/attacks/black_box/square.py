"""The Square attack: random search over square windows, with one query per step and no gradients."""

from dataclasses import dataclass

import torch

from brinell.attacks.black_box.random_search import (
    L1_MOVE,
    L2_MOVE,
    BudgetTransfer,
    RandomSearch,
    RandomSearchState,
    SearchAttack,
    for_norm,
    shares,
)
from brinell.attacks.black_box.square_patterns import Sides, draw, pattern_table, span, stamp, tiling, window_table
from brinell.core.attack import Batch
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import L1Norm, L2Norm, LinfNorm, Norm
from brinell.ops.rowwise import rows
from brinell.ops.types import Keys, Labels, Points


@dataclass(frozen=True)
class Windows:
    """Square's moves in Linf: start from stripes; then move one window to a face of the ball, one sign per channel.

    `first` returns the start, `next` a candidate near the best point x, at each row's iteration t.
    """

    sides: Sides

    def first(self, x0: Points, key: Keys, ball: Ball) -> Points:
        stripes = rng.signs(key, (x0.shape[1], 1, x0.shape[3]))
        return ball.project(x0, x0 + rows(ball.eps, x0) * stripes)

    def next(self, x0: Points, x: Points, t: Labels, key: Keys, ball: Ball, schedule: SearchAttack) -> Points:
        c, h, w = x0.shape[1:]
        _, sides, bounds = window_table(self.sides, schedule.steps, schedule.p0, h, w, 1, c, t.device)
        side, draws = sides[t], draw(key, bounds[t])
        push = 2 * ball.eps[:, None] * (2 * draws[:, 2:].float() - 1)
        tall, wide = span(draws[:, 0], side, h), span(draws[:, 1], side, w)
        column = push[:, :, None, None] * tall[:, None, :, None]
        return ball.project(x0, torch.addcmul(x, column, wide[:, None, None].to(x.dtype)))


@dataclass(frozen=True)
class Bumps:
    """Square's moves in L2 and L1: start from tiles of bumps; then move the budget of two windows to one of them."""

    moves: BudgetTransfer
    p: int
    decay: int
    sides: Sides

    def first(self, x0: Points, key: Keys, ball: Ball) -> Points:
        """Return starts tiled with bumps of random orientation, with a random sign in every channel."""
        c, h, w = x0.shape[1:]
        count, tile, both = tiling(h, w, self.decay, self.p, x0.device)
        turned = rng.integers(rng.fold(key, 1), 2, (count,))[:, tile] > 0
        signs = rng.signs(rng.fold(key, 2), (c, count))[:, :, tile]
        d = signs * torch.where(turned, both[1], both[0])[:, None]
        return self.moves.put(ball, x0, d.view_as(x0))

    def next(self, x0: Points, x: Points, t: Labels, key: Keys, ball: Ball, schedule: SearchAttack) -> Points:
        c, h, w = x0.shape[1:]
        stages, side_at, bounds = window_table(self.sides, schedule.steps, schedule.p0, h, w, 2, 1 + c, t.device)
        sides = tuple(self.sides.side(share, h, w) for share in shares(schedule.steps, schedule.p0))
        stage, side, draws = stages[t], side_at[t], draw(key, bounds[t])
        patterns = pattern_table(sides, self.decay, self.p, t.device)
        block = stamp(patterns, stage, draws[:, 4], draws[:, 0], draws[:, 1], h, w)[:, None]
        cleared = (span(draws[:, 2], side, h)[:, :, None] & span(draws[:, 3], side, w)[:, None]).view(-1, 1, h * w)
        # A pattern has no zeros inside its window, so it marks the window.
        new = (2 * draws[:, 5:].float() - 1)[:, :, None] * block
        d = self.moves.mix((x - x0).flatten(2), new, block != 0, cleared, ball.eps)
        place = self.moves.trim if c == 1 else self.moves.put
        return place(ball, x0, d.view_as(x0))


PROPOSALS: dict[type[Norm], Windows | Bumps] = {
    LinfNorm: Windows(Sides()),
    L2Norm: Bumps(L2_MOVE, p=2, decay=2, sides=Sides(least=3, odd=True)),
    L1Norm: Bumps(L1_MOVE, p=1, decay=4, sides=Sides(least=3, odd=True)),
}


@dataclass(frozen=True)
class Square(SearchAttack):
    """A random search over square windows: a random change of one window is accepted if the loss strictly increases.

    Method: the window's share of the image starts at `p0` and halves at fixed iterations (11, 51, 201, 501, 1001, 2001,
    4001, …; as in AutoAttack they are not rescaled to `steps`). Linf: start from vertical stripes; move a window to a
    face of the ball, with one sign per channel. L2 and L1: start from tiles of bumps; the budget of two windows goes
    to the first, mixed with a bump of random sign and orientation; L2 rescales and clips, L1 projects exactly.
    Different here: windows, signs and orientations are drawn per sample; a window may lie at every offset 0 … h − s
    (the reference never draws the last one); every image size works (tiles are centred along both sides and at least
    one pixel wide). Cost per step: one forward pass; one more for the start. Reference: Andriushchenko et al. 2020; L1:
    Croce & Hein 2021.
    Limits: progresses slowly on robust models. Its windows suit images, not tables or text.

    >>> Square().queries, Square(steps=100).name
    (5001, 'square')
    """

    name = "square"

    def without_images(self) -> RandomSearch:
        return RandomSearch(self.steps, self.p0, self.loss)

    def init(self, p: Batch, ball: Ball) -> RandomSearchState:
        if p.x.ndim != 4:
            raise PlanError(
                expected="images of shape (channels, height, width) for Square",
                got=f"samples of shape {tuple(p.x.shape[1:])}",
                remedy=f"Use RandomSearch(steps={self.steps}), which accepts inputs of any shape.",
            )
        return super().init(p, ball)

    def first(self, p: Batch, ball: Ball) -> Points:
        return for_norm(PROPOSALS, ball.norm, self.name).first(p.x, rng.fold(p.key, 0), ball)

    def candidate(self, x: Points, t: Labels, key: Keys, p: Batch, ball: Ball) -> Points:
        proposal = for_norm(PROPOSALS, ball.norm, self.name)
        return proposal.next(p.x, x, t, key, ball, self)
