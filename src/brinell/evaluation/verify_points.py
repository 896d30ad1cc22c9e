"""Verify adversarials: a fresh forward pass, the distance in float64, the box, finiteness."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.core.criterion import Criterion
from brinell.core.threat import Ball
from brinell.engine.oracle import CLAIMS_BLOCK, Oracle
from brinell.ops.rowwise import put

LEVELS = 255


@dataclass(frozen=True)
class Verified:
    """For every point: whether it holds, the model's class, the distance, whether it holds in 8 bits, and (columns of
    `judged`) which of the fresh passes it fooled."""

    ok: Tensor
    pred: Tensor
    distance: Tensor
    ok_8bit: Tensor
    judged: Tensor
    chosen: Tensor | None = None


def verify_points(
    oracle: Oracle,
    criterion: Criterion,
    x0: Tensor,
    x: Tensor,
    y: Tensor,
    t: Tensor,
    ball: Ball,
    draws: int = 1,
    id: Tensor | None = None,
) -> Verified:
    """Verify adversarial points on the model with fresh passes.

    Of a randomised model (`draws` above 1) more than half of the passes must be fooled, and once more of as many
    others, so that luck in the first passes does not decide.
    """
    oracle = oracle.sized(CLAIMS_BLOCK)

    def passes() -> tuple[Tensor, Tensor]:
        outputs = [oracle.output(x, id) for _ in range(draws)]
        return torch.stack([criterion.reached(out, y, t) for out in outputs], 1), outputs[0].logits.argmax(1)

    chosen = passes()[0] if draws > 1 else None
    judged, pred = passes()
    ok = (2 * judged.sum(1) > draws) & ball.contains(x0, x)
    if chosen is not None:
        ok = ok & (2 * chosen.sum(1) > draws)
    rounded = (x * LEVELS).round() / LEVELS
    return Verified(
        ok=ok,
        pred=pred,
        distance=ball.distance(x0, x),
        ok_8bit=criterion.reached(oracle.output(rounded, id), y, t) & ball.contains(x0, rounded),
        judged=judged,
        chosen=None if chosen is None else chosen.sum(1),
    )


def verify_claims(
    oracle: Oracle,
    criterion: Criterion,
    x0: Tensor,
    x: Tensor,
    y: Tensor,
    t: Tensor,
    ball: Ball,
    claimed: Tensor,
    id: Tensor | None = None,
) -> Verified:
    """Verify the points that claim to break their rows; the others are not queried and do not hold."""
    no = torch.zeros_like(claimed)
    nothing = Verified(no, torch.zeros_like(y), ball.distance(x0, x), no, no[:, None])
    at = claimed.nonzero()[:, 0]
    if not len(at):
        return nothing
    part, own = ball.subset(at), None if id is None else id[at]
    return put(nothing, at, verify_points(oracle, criterion, x0[at], x[at], y[at], t[at], part, id=own))
