"""The best point of every sample so far. The rule for the best point is `BestSoFar` in `attack_step`."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from brinell.ops.rowwise import concat, take, where

NEVER = -1


@dataclass(frozen=True)
class Best:
    """The best point of every sample, one row each. `x` is the point kept so far, at first the clean point.

    `found`: some query was adversarial, at any distance. `broken`: some query was adversarial within the radius, with a
    margin above the rounding error. `margin` and `loss` are the largest values over all queried candidates;
    `adv_margin`, `adv_pred`, `distance` and `attempt` belong to `x`. `first` is the number of forward passes before the
    sample broke (−1: never). `non_finite`: some logits were not finite. `last` is the margin of the latest query,
    `still` the number of queries in a row that left it unchanged inside the ball, `longest` the largest such number.
    """

    x: Tensor
    found: Tensor
    broken: Tensor
    margin: Tensor
    adv_margin: Tensor
    adv_pred: Tensor
    loss: Tensor
    distance: Tensor
    first: Tensor
    attempt: Tensor
    forwards: Tensor
    backwards: Tensor
    non_finite: Tensor
    last: Tensor
    still: Tensor
    longest: Tensor


def blank(x: Tensor) -> Best:
    """Return the record of the samples x before the first query: nothing is found yet, and the best point is x."""
    n = len(x)
    low = torch.full((n,), -torch.inf, dtype=x.dtype, device=x.device)
    false, zero = torch.zeros(n, dtype=torch.bool, device=x.device), torch.zeros(n, dtype=torch.long, device=x.device)
    return Best(
        x=x, found=false, broken=false, margin=low, adv_margin=low, adv_pred=zero + NEVER, loss=low, distance=-low,
        first=zero + NEVER, attempt=zero, forwards=zero, backwards=zero, non_finite=false,
        last=low, still=zero, longest=zero,
    )  # fmt: skip


def at_next_attempt(best: Best) -> Best:
    """Return the best points at the beginning of another attempt: the count `still` starts again at 0."""
    return replace(best, last=torch.full_like(best.last, -torch.inf), still=torch.zeros_like(best.still))


def joined(a: Best, b: Best, nearest: bool) -> Best:
    """Return the best points of two attempts, an earlier one `a` and a later one `b`, run one after the other.

    With `nearest` (see `BestSoFar`) a point that breaks its sample is preferred to a closer point that does not.
    """
    near = torch.where(a.broken == b.broken, b.distance < a.distance, b.broken)
    keep = near if nearest else b.adv_margin > a.adv_margin
    later = torch.where(b.first >= 0, a.forwards + b.first, NEVER)
    return Best(
        x=where(keep, b.x, a.x),
        found=a.found | b.found,
        broken=a.broken | b.broken,
        margin=torch.where(b.margin > a.margin, b.margin, a.margin),
        adv_margin=torch.where(keep, b.adv_margin, a.adv_margin),
        adv_pred=torch.where(keep, b.adv_pred, a.adv_pred),
        loss=torch.where(b.loss > a.loss, b.loss, a.loss),
        distance=torch.where(keep, b.distance, a.distance),
        first=torch.where(a.first >= 0, a.first, later),
        attempt=torch.where(keep, b.attempt, a.attempt),
        forwards=a.forwards + b.forwards,
        backwards=a.backwards + b.backwards,
        non_finite=a.non_finite | b.non_finite,
        last=b.last,
        still=b.still,
        longest=torch.maximum(a.longest, b.longest),
    )


class BestRow(NamedTuple):
    """One sample's best point: the row `at` of `best`."""

    best: Best
    at: int


def gather_rows(rows: list[BestRow]) -> Best:
    """Return one `Best` with these rows, which may come from different `Best` objects."""
    groups: dict[int, list[int]] = {}
    for k, r in enumerate(rows):
        groups.setdefault(id(r.best), []).append(k)
    parts = [_rows_at(rows[group[0]].best, [rows[k].at for k in group]) for group in groups.values()]
    if len(parts) == 1:
        return parts[0]
    order = [k for group in groups.values() for k in group]
    return _rows_at(concat(parts), sorted(range(len(order)), key=order.__getitem__))


def _rows_at(best: Best, index: list[int]) -> Best:
    return take(best, torch.tensor(index, device=best.x.device, dtype=torch.long))
