"""Down from a known distance: an attack of a fixed radius in ever smaller balls, as long as it succeeds."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.attacks._wrapper import Wrapper
from brinell.attacks.gradient.pgd import PGD
from brinell.attacks.minimum_norm._common import fooled
from brinell.attacks.minimum_norm.fmn import FMN
from brinell.core.attack import AnyAttack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import Norm
from brinell.ops.rowwise import where, where_rows
from brinell.ops.types import Keys, Labels, Mask, Points, Scalars

# Losses that are the same as long as an attack has chosen no target.
TOWARDS = {"margin": "margin-towards"}


@dataclass(frozen=True)
class State(AttackState):
    """The minimiser that comes first, then the inner attack and its radius; the smallest distance that broke.

    `down`: whether the row has left the minimiser; `cut`: by which share the radius lies below the distance; `tried`:
    rounds so far.
    """

    t: Labels
    x: Points
    before: Any
    inner: Any
    eps: Scalars
    high: Scalars
    cut: Scalars
    down: Mask
    tried: Labels
    key: Keys

    @property
    def aim(self) -> Labels | None:
        """The choice of targets of the attack in progress, where one of the two makes a choice."""
        first, then = (part.aim for part in (self.before, self.inner))
        if first is None and then is None:
            return None
        none = torch.full_like(self.t, -1)
        return torch.where(self.down, none if then is None else then, none if first is None else first)


@dataclass(frozen=True)
class Descend(Wrapper[State]):
    """Takes the distance a minimiser finds and runs an attack of a fixed radius just below it, again and again.

    Method: a round's radius is the smallest distance that broke so far, less the share `cut`. Success lowers the
    distance to that of the point found and the next round follows; failure halves the share. It is over when the share
    falls below `least` or after `rounds` rounds, each with noise of its own. What is left standing by the attack at a
    radius is so left standing here, up to twice `least`, unless the rounds run out.
    Cost: the minimiser's, then at most `rounds` times the attack's.
    Reference: this project.
    Limits: a sample that the minimiser does not break is not searched; inherits every weakness of the attack inside.

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
                expected="an attack of a fixed radius after one that looks for the smallest",
                got=f"{self.attack.name} after {self.before.name}",
                remedy='Write Descend(APGD(loss="margin"), before=FMN()).',
            )
        one = self.attack.loss in (self.before.loss, TOWARDS.get(self.before.loss))
        if not one or self.attack.requires is not self.before.requires:
            raise PlanError(
                expected="two attacks that follow the same loss",
                got=f"{self.attack.name} ({self.attack.loss}) and {self.before.name} ({self.before.loss})",
                remedy='Write Descend(APGD(loss="margin"), before=FMN(loss="margin")).',
            )
        if len(self.attack.query_pattern) > 1 or len(self.before.query_pattern) > 1:
            raise PlanError(
                expected="attacks that need the same of every answer, since rows change over in their own time",
                got=f"{self.attack.name} after {self.before.name}",
                remedy="Use FMN before, not FAB.",
            )
        if not (0 < self.least <= self.cut < 1 and self.rounds >= 1):
            raise PlanError(
                expected="0 < least ≤ cut < 1 and rounds of at least 1",
                got=f"cut = {self.cut}, least = {self.least}, rounds = {self.rounds}",
                remedy="Leave them out for the defaults.",
            )

    @property
    def name(self) -> str:
        """The attack's."""
        return f"descend-{self.attack.name}"

    @property
    def norms(self) -> tuple[Norm, ...]:
        """Those of both."""
        return tuple(n for n in self.before.norms if n in self.attack.norms)

    @property
    def queries(self) -> int:
        """Every round to its end."""
        return self.before.queries + self.rounds * self.attack.queries

    @property
    def usual_queries(self) -> int:
        """The minimiser's, and every round as long as the attack takes as a rule."""
        return min(self.before.queries + self.rounds * self.attack.usual_queries, self.queries)

    def init(self, p: Batch, ball: Ball) -> State:
        """As the minimiser begins."""
        before = self.before.init(p, ball)
        key, none = rng.fold(p.key, 0), torch.zeros_like(p.y)
        far = torch.full_like(ball.eps, torch.inf)
        span = ball.span(p.x)
        inner = self.attack.init(replace(p, key=key, start=None), replace(ball, eps=span))
        return State(none, before.x, before, inner, span, far, torch.full_like(span, self.cut), none.bool(), none, key)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """A step of the minimiser or of the attack, or the next round in another ball."""
        size = ball.norm.size(s.x - p.x)
        hit = fooled(a, p) & ball.allows(p.x, s.x) & (size < s.high)
        high = torch.where(hit, size, s.high)
        before = where_rows(s.down, s.before, self.before.step(s.before, a, p, ball))
        stepped = self.attack.step(s.inner, a, replace(p, key=s.key), replace(ball, eps=s.eps))
        spent = ~s.down & (before.t >= self.before.queries)
        won = s.down & hit
        failed = s.down & ~hit & (stepped.t >= self.attack.queries)
        over, down = spent | won | failed, s.down | spent
        cut = torch.where(failed, s.cut / 2, s.cut)
        tried = s.tried + (won | failed).long()
        # A row without an adversarial has nothing to go down from, one that is wrong by itself nowhere to go.
        done = over & (high.isinf() | (high <= 0) | (cut < self.least) | (tried >= self.rounds))
        eps = torch.where(over & high.isfinite(), high * (1 - cut), s.eps)
        key = torch.where(over, rng.fold(p.key, tried + 1), s.key)
        fresh = self.attack.init(replace(p, key=key, start=None), replace(ball, eps=eps))
        inner = where_rows(over, fresh, where_rows(s.down, stepped, s.inner))
        return State(
            t=torch.where(done, self.queries, s.t + 1),
            x=where(done, s.x, where(down, inner.x, before.x)),
            before=before,
            inner=inner,
            eps=eps,
            high=high,
            cut=cut,
            down=down,
            tried=tried,
            key=key,
        )
