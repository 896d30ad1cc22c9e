"""A search over the radius that turns an attack of fixed radius into a minimum-norm attack."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.attacks._common import PointState, Wrapper, misclassified
from brinell.attacks._parameters import check_numbers
from brinell.attacks.gradient.pgd import PGD
from brinell.core.attack import AnyAttack, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.rowwise import flat, where, where_rows
from brinell.ops.types import Keys, Labels, Scalars

# The default first radius as a share of the box's diameter: one 8-bit level in every coordinate.
FIRST = 1 / 255


@dataclass(frozen=True)
class BisectState(PointState):
    """State, per row: inner state and radius, largest failed radius, smallest adversarial distance, round counts."""

    inner: Any
    eps: Scalars
    low: Scalars
    high: Scalars
    grown: Labels
    halved: Labels
    key: Keys

    @property
    def aim(self) -> Labels | None:
        chosen: Labels | None = self.inner.aim
        return chosen


@dataclass(frozen=True)
class Bisect(Wrapper[BisectState]):
    """A wrapper that runs an attack in balls of growing radius until it succeeds, then bisects the radius.

    Method: the radius starts at `first` and is multiplied by `factor` after each failure, at most `grow` times and
    never beyond the box. Then `halve` rounds use the mean of the largest radius that failed and the smallest successful
    distance. A round ends at its first success, and every round has its own noise. Cost: at most `grow` + `halve` times
    that of the attack. Reference: the search of Foolbox 2.4 around PGD, as "How to compare adversarial robustness of
    classifiers from a global perspective" uses it (`paper_pgd`). Different here: a success counts with its distance,
    which may be below the radius, and the first bisection starts at the largest radius that failed, not at 0.
    Limits: costs a whole attack per bisection and inherits every weakness of the inner attack. If success is not
    monotone in eps, the search may miss the nearest boundary.

    >>> Bisect(PGD(steps=9), grow=2, halve=8).queries
    100
    """

    attack: AnyAttack = PGD()  # noqa: RUF009
    first: float | None = None
    factor: float = 2.0
    grow: int = 10
    halve: int = 10
    minimum_norm = True

    def __post_init__(self) -> None:
        if self.attack.minimum_norm or self.attack.leaves_ball:
            raise PlanError(
                expected="an attack of a fixed radius",
                got=f"{self.attack.name}, which minimises the norm or leaves the ball",
                remedy="Run this attack without Bisect; for APGD, write larger_eps=False.",
            )
        sound = self.factor > 1 and self.grow >= 1 and self.halve >= 0 and (self.first is None or self.first > 0)
        expected = "first > 0, factor > 1, grow of at least 1 and halve of at least 0"
        check_numbers(sound, expected, first=self.first, factor=self.factor, grow=self.grow, halve=self.halve)

    @property
    def name(self) -> str:
        return f"bisect-{self.attack.name}"

    @property
    def queries(self) -> int:
        return (self.grow + self.halve) * self.attack.queries

    def init(self, p: Batch, ball: Ball) -> BisectState:
        first = FIRST * ball.norm.diameter(flat(p.x).shape[1]) if self.first is None else self.first
        eps = torch.minimum(torch.full_like(ball.eps, first), ball.span(p.x))
        if p.start is not None:  # the first ball contains it
            eps = torch.maximum(eps, ball.norm.size(p.start - p.x))
        key, zero = rng.fold(p.key, 0), torch.zeros_like(p.y)
        inner = self.attack.init(replace(p, key=key), replace(ball, eps=eps))
        none = torch.zeros_like(eps)
        return BisectState(zero, inner.x, inner, eps, none, torch.full_like(eps, torch.inf), zero, zero, key)

    def step(self, s: BisectState, a: Response, p: Batch, ball: Ball) -> BisectState:
        hit = misclassified(a, p)
        size = ball.norm.size(s.x - p.x)
        stepped = self.attack.step(s.inner, a, replace(p, key=s.key), replace(ball, eps=s.eps))
        over = hit | (stepped.t >= self.attack.queries)
        high = torch.where(hit, torch.minimum(s.high, size), s.high)
        low = torch.where(over & ~hit, torch.maximum(s.low, s.eps), s.low)
        growing = s.high.isinf()
        grown, halved = s.grown + (over & growing).long(), s.halved + (over & ~growing).long()
        span = ball.span(p.x)
        larger = torch.minimum(s.eps * self.factor, span)
        # Once the whole box has failed, no radius remains.
        lost = high.isinf() & ((grown >= self.grow) | (low >= span))
        done = over & (lost | (halved >= self.halve) & high.isfinite())
        eps = torch.where(over, torch.where(high.isfinite(), (low.minimum(high) + high) / 2, larger), s.eps)
        key = torch.where(over, rng.fold(rng.fold(p.key, grown), halved), s.key)
        fresh = self.attack.init(replace(p, key=key, start=None), replace(ball, eps=eps))
        inner = where_rows(over, fresh, stepped)
        t, x = torch.where(done, self.queries, s.t + 1), where(done, s.x, inner.x)
        return BisectState(t, x, inner, eps, low, high, grown, halved, key)


def paper_pgd() -> Bisect:
    """Return PGD in Linf with a search over its radius, as in the paper on robustness curves (see `Bisect`).

    It has the hyper-parameters of Foolbox 2.4: 40 steps of a thirtieth of the radius from the clean point; first radius
    0.3; factor 1.5 at most 20 times; then 20 bisections.

    >>> paper_pgd().queries
    1640
    """
    return Bisect(PGD(steps=40, rel_step=1 / 30, random_start=False), first=0.3, factor=1.5, grow=20, halve=20)
