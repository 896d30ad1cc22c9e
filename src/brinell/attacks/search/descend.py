"""A minimum-norm attack followed by an attack of fixed radius in ever smaller balls."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.attacks._common import PointState, Wrapper, begun, misclassified, stepped
from brinell.attacks._parameters import check_numbers
from brinell.attacks.gradient.pgd import PGD
from brinell.attacks.minimum_norm.fmn import FMN
from brinell.core.attack import AnyAttack, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import Norm
from brinell.ops.rowwise import where
from brinell.ops.types import Keys, Labels, Mask, Points, Scalars

# Losses that agree as long as no target is chosen.
TOWARDS = {"margin": "margin-towards"}


@dataclass(frozen=True)
class DescendState(PointState):
    """State, per row: states of the minimum-norm and the inner attack, inner radius, and smallest distance so far.

    `nearest` is the nearest adversarial point, `high` its distance. `down` marks rows that have finished the
    minimum-norm attack. The radius is smaller than the distance by the share `cut`. `tried` counts rounds.
    """

    before: Any
    inner: Any
    nearest: Points
    eps: Scalars
    high: Scalars
    cut: Scalars
    down: Mask
    tried: Labels
    key: Keys

    @property
    def aim(self) -> Labels | None:
        first, then = (state.aim for state in (self.before, self.inner))
        if first is None and then is None:
            return None
        none = torch.full_like(self.t, -1)
        return torch.where(self.down, none if then is None else then, none if first is None else first)


@dataclass(frozen=True)
class Descend(Wrapper[DescendState]):
    """A wrapper that runs a minimum-norm attack, then repeats an attack of fixed radius just below the distance found.

    Method: the radius of a round is the smallest distance so far, reduced by the share `cut`. After a
    success the new, smaller distance is used; after a failure the share is halved. The search ends when the share
    falls below `least` or after `rounds` rounds, each with its own noise. In the first case the inner attack has
    failed at a radius that is smaller than the result by a share of less than 2 · `least`.
    Cost: the minimum-norm attack's, plus at most `rounds` times the inner attack's.
    Reference: this project.
    Limits: skips samples that the minimum-norm attack does not break. Inherits every weakness of the inner attack.

    >>> Descend(PGD(steps=9, loss="margin"), before=FMN(steps=50), rounds=5).queries
    101
    """

    attack: AnyAttack = PGD(loss="margin")  # noqa: RUF009
    before: AnyAttack = FMN(steps=100)  # noqa: RUF009
    cut: float = 0.08
    least: float = 0.001
    rounds: int = 24
    minimum_norm = True
    parts = ("attack", "before")

    def __post_init__(self) -> None:
        if self.attack.minimum_norm or self.attack.leaves_ball or not self.before.minimum_norm:
            raise PlanError(
                expected="Descend(attack, before=…): an attack of fixed radius, and a minimum-norm attack as `before`",
                got=f"attack {self.attack.name} and before={self.before.name}",
                remedy='Write Descend(APGD(loss="margin"), before=FMN()).',
            )
        one = self.attack.loss in (self.before.loss, TOWARDS.get(self.before.loss))
        if not one or self.attack.requires is not self.before.requires:
            raise PlanError(
                expected="two attacks with the same loss that both use gradients, or both do not",
                got=f"{self.attack.name} ({self.attack.loss}) and {self.before.name} ({self.before.loss})",
                remedy='Write Descend(APGD(loss="margin"), before=FMN(loss="margin")).',
            )
        if len(self.attack.query_pattern) > 1 or len(self.before.query_pattern) > 1:
            raise PlanError(
                expected="two attacks that need the same gradients at every query",
                got=f"attack={self.attack.name} and before={self.before.name}",
                remedy='Write Descend(APGD(loss="margin"), before=FMN()); FAB alternates between gradients and logits.',
            )
        sound = 0 < self.least <= self.cut < 1 and self.rounds >= 1
        expected = "0 < least ≤ cut < 1 and rounds of at least 1"
        check_numbers(sound, expected, cut=self.cut, least=self.least, rounds=self.rounds)

    @property
    def name(self) -> str:
        return f"descend-{self.attack.name}"

    @property
    def norms(self) -> tuple[Norm, ...]:
        return tuple(n for n in self.before.norms if n in self.attack.norms)

    @property
    def queries(self) -> int:
        return self.before.queries + self.rounds * self.attack.queries

    @property
    def usual_queries(self) -> int:
        return min(self.before.queries + self.rounds * self.attack.usual_queries, self.queries)

    def _start(self, nearest: Points) -> Points | None:
        """Return where a round starts, given the nearest adversarial points; None where the inner attack chooses."""
        return None

    def init(self, p: Batch, ball: Ball) -> DescendState:
        before = self.before.init(p, ball)
        key, none = rng.fold(p.key, 0), torch.zeros_like(p.y)
        far = torch.full_like(ball.eps, torch.inf)
        span, cut = ball.span(p.x), torch.full_like(ball.eps, self.cut)
        inner = self.attack.init(replace(p, key=key, start=None), replace(ball, eps=span))
        return DescendState(none, before.x, before, inner, p.x, span, far, cut, none.bool(), none, key)

    def step(self, s: DescendState, a: Response, p: Batch, ball: Ball) -> DescendState:
        size = ball.norm.size(s.x - p.x)
        hit = misclassified(a, p) & ball.allows(p.x, s.x) & (size < s.high)
        high, nearest = torch.where(hit, size, s.high), where(hit, s.x, s.nearest)
        before = stepped(self.before, ~s.down, s.before, a, p, ball)
        moved = stepped(self.attack, s.down, s.inner, a, replace(p, key=s.key), replace(ball, eps=s.eps))
        spent = ~s.down & (before.t >= self.before.queries)
        won = s.down & hit
        failed = s.down & ~hit & (moved.t >= self.attack.queries)
        over, down = spent | won | failed, s.down | spent
        cut = torch.where(failed, s.cut / 2, s.cut)
        tried = s.tried + (won | failed).long()
        # Rows without an adversarial point have no distance to reduce; misclassified clean points have distance 0.
        done = over & (high.isinf() | (high <= 0) | (cut < self.least) | (tried >= self.rounds))
        eps = torch.where(over & high.isfinite(), high * (1 - cut), s.eps)
        key = torch.where(over, rng.fold(p.key, tried + 1), s.key)
        inner = begun(self.attack, over, moved, replace(p, key=key, start=self._start(nearest)), replace(ball, eps=eps))
        t, x = torch.where(done, self.queries, s.t + 1), where(done, s.x, where(down, inner.x, before.x))
        return DescendState(t, x, before, inner, nearest, eps, high, cut, down, tried, key)


@dataclass(frozen=True)
class WarmDescend(Descend):
    """`Descend` whose rounds start at the nearest adversarial point, moved into the smaller ball.

    Method: as `Descend`, but every round gives the inner attack the nearest adversarial point so far as its start, so
    that a round goes on from where the last success ended. Cost: that of `Descend`; rounds that succeed are short.
    Reference: this project.
    Limits: as `Descend`. Inner attacks that ignore an explicit start gain nothing.

    >>> WarmDescend(PGD(steps=9, loss="margin"), before=FMN(steps=50), rounds=5).queries
    101
    """

    def _start(self, nearest: Points) -> Points | None:
        return nearest
