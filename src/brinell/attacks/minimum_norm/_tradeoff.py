"""The search for the constant that weighs margin against distance, per row (Carlini & Wagner 2017)."""

from dataclasses import dataclass, replace

import torch

from brinell.ops.types import Labels, Mask, Scalars

# The constant is multiplied by this until a round succeeds.
GROW = 10.0
# A round has ten checks. It ends at a check where the objective is above this share of its value at the last check.
ENOUGH, CHECKS = 0.9999, 10


@dataclass(frozen=True)
class ConstantSearch:
    """State of the search, per row: constant, its largest failed and smallest successful value, and round.

    `k` is the step in the round, `hit` whether the round has succeeded, `last` the last checked objective.
    """

    c: Scalars
    low: Scalars
    high: Scalars
    k: Labels
    round: Labels
    hit: Mask
    last: Scalars


def first(like: Scalars, y: Labels, c: float) -> ConstantSearch:
    """Return the state of the search before round 1."""
    far, zero = torch.full_like(like, torch.inf), torch.zeros_like(y)
    return ConstantSearch(torch.full_like(like, c), torch.zeros_like(like), far, zero, zero, zero.bool(), far)


def observe(s: ConstantSearch, objective: Scalars, hit: Mask, steps: int) -> tuple[ConstantSearch, Mask]:
    """Return the state after one more step, and the mask of rows whose round is over.

    A round ends after `steps` steps, or when the objective no longer decreases. `hit` marks misclassified rows.
    """
    check = s.k % max(steps // CHECKS, 1) == 0
    still = check & (s.k > 0) & (objective > ENOUGH * s.last)
    last = torch.where(check, objective, s.last)
    return replace(s, k=s.k + 1, hit=s.hit | hit, last=last), still | (s.k + 1 >= steps)


def next_constant(s: ConstantSearch, over: Mask, rounds: int) -> ConstantSearch:
    """Return the state with a new constant in the rows `over`, whose round is over.

    If there are ten or more rounds, the last round uses the smallest constant that succeeded.
    """
    low = torch.where(over & ~s.hit, torch.maximum(s.low, s.c), s.low)
    high = torch.where(over & s.hit, torch.minimum(s.high, s.c), s.high)
    c = torch.where(high.isfinite(), (low + high) / 2, s.c * GROW)
    again = (s.round + 2 >= rounds) & high.isfinite() & (rounds >= 10)
    c = torch.where(over, torch.where(again, high, c), s.c)
    k, last = torch.where(over, 0, s.k), torch.where(over, torch.inf, s.last)
    return ConstantSearch(c, low, high, k, s.round + over.long(), s.hit & ~over, last)
