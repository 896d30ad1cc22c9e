"""The search over the constant that weighs the margin against the distance, one per row (Carlini & Wagner 2017)."""

from dataclasses import dataclass, replace

import torch

from brinell.ops.types import Labels, Mask, Scalars

# While no constant succeeds it is multiplied by this.
GROW = 10.0
# A round ends when the objective has not fallen below this share of its value at the last check, ten per round.
ENOUGH, CHECKS = 0.9999, 10


@dataclass(frozen=True)
class Search:
    """The constant in use, the largest that failed, the smallest that succeeded; step and round; what was seen."""

    c: Scalars
    low: Scalars
    high: Scalars
    k: Labels
    round: Labels
    hit: Mask
    last: Scalars


def first(like: Scalars, y: Labels, c: float) -> Search:
    """The search before its first round."""
    far, zero = torch.full_like(like, torch.inf), torch.zeros_like(y)
    return Search(torch.full_like(like, c), torch.zeros_like(like), far, zero, zero, zero.bool(), far)


def observe(s: Search, objective: Scalars, hit: Mask, steps: int) -> tuple[Search, Mask]:
    """One more step; and whether the round is over, because its steps are used up or nothing moves any more."""
    check = s.k % max(steps // CHECKS, 1) == 0
    still = check & (s.k > 0) & (objective > ENOUGH * s.last)
    last = torch.where(check, objective, s.last)
    return replace(s, k=s.k + 1, hit=s.hit | hit, last=last), still | (s.k + 1 >= steps)


def settle(s: Search, over: Mask, rounds: int) -> Search:
    """Rows whose round is over get a new constant; the last of ten or more rounds repeats the smallest that worked."""
    low = torch.where(over & ~s.hit, torch.maximum(s.low, s.c), s.low)
    high = torch.where(over & s.hit, torch.minimum(s.high, s.c), s.high)
    c = torch.where(high.isfinite(), (low + high) / 2, s.c * GROW)
    again = (s.round + 2 >= rounds) & high.isfinite() & (rounds >= 10)
    c = torch.where(over, torch.where(again, high, c), s.c)
    return Search(
        c=c,
        low=low,
        high=high,
        k=torch.where(over, 0, s.k),
        round=s.round + over.long(),
        hit=s.hit & ~over,
        last=torch.where(over, torch.inf, s.last),
    )
