"""What is kept of every sample while its rows run: never trusts an attack, looks at every point asked about."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import Batch, Response
from brinell.core.criterion import Criterion
from brinell.core.model import Output
from brinell.core.threat import TOLERANCE, Ball
from brinell.ops.rowwise import where

NEVER = -1


@dataclass(frozen=True)
class Best:
    """One row per slot; `x` is the adversarial kept so far (the clean point while there is none)."""

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

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.x.device


def blank(x: Tensor) -> Best:
    """Nothing seen yet."""
    n = len(x)
    low = torch.full((n,), -torch.inf, dtype=x.dtype, device=x.device)
    false, zero = torch.zeros(n, dtype=torch.bool, device=x.device), torch.zeros(n, dtype=torch.long, device=x.device)
    return Best(
        x=x, found=false, broken=false, margin=low, adv_margin=low, adv_pred=zero + NEVER, loss=low,
        distance=-low,
        first=zero + NEVER, attempt=zero, forwards=zero, backwards=zero, non_finite=false,
    )  # fmt: skip


def joined(a: Best, b: Best, nearest: bool) -> Best:
    """The records of two legs, each by itself, as one that was kept through the first and then the second.

    What counts as broken goes before what is only near; `nearest` as of the recorder.
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
    )


def _spread(logits: Tensor) -> Tensor:
    return logits.amax(1) - logits.amin(1)


@dataclass(frozen=True)
class BestSoFar:
    """Decides what counts: `nearest` keeps the closest adversarial, otherwise the one with the largest margin.

    `failed` keeps the point with the largest margin even where that is no success: a randomised model may still fall.
    A success by no more than `slack`, a share of the spread of the logits, is kept and counts as found, not as broken.
    """

    criterion: Criterion
    nearest: bool
    failed: bool = False
    slack: float = 0.0

    def see(self, r: Best, x: Tensor, a: Response, p: Batch, ball: Ball, live: Tensor, attempt: Tensor) -> Best:
        """The record after the model was asked about `x`; rows that are not live stay as they are."""
        said = Output(a.logits, a.reject)
        margin = self.criterion.margin(said, p.y, p.target)
        # In float32: this only steers. What counts is measured again in float64 when it is verified.
        distance = ball.norm.size(x - p.x)
        allowed, near = ball.allows(p.x, x), distance <= ball.eps * (1 + TOLERANCE)
        adversarial = live & allowed & self.criterion.reached(said, p.y, p.target)
        within = adversarial & near
        if self.nearest:
            keep = adversarial & (distance < r.distance)
            if self.slack:
                # What is sure is kept before what is only near; among the sure the nearest.
                certain = within & (margin > self.slack * _spread(a.logits))
                keep = torch.where(r.broken, keep & certain, keep | certain)
        else:
            keep = (live & allowed & near if self.failed else within) & (margin > r.adv_margin)
        # A minimising attack walks through points outside the ball; their margins and losses are part of its story.
        counts = live & allowed & (near | self.nearest)
        sure = within & (margin > self.slack * _spread(a.logits)) if self.slack else within
        newly = sure & ~r.broken
        return replace(
            r,
            x=where(keep, x, r.x),
            found=r.found | adversarial,
            broken=r.broken | sure,
            margin=torch.where(counts & (margin > r.margin), margin, r.margin),
            adv_margin=torch.where(keep, margin, r.adv_margin),
            adv_pred=torch.where(keep, a.logits.argmax(1), r.adv_pred),
            loss=torch.where(counts & (a.loss > r.loss), a.loss, r.loss),
            distance=torch.where(keep, distance, r.distance),
            first=torch.where(newly, r.forwards, r.first),
            attempt=torch.where(keep, attempt, r.attempt),
            non_finite=r.non_finite | (live & ~a.logits.isfinite().all(1)),
        )
