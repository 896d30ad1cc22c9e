"""Verify adversarials with a fresh forward pass, and refine in float32 the distances found in lower precision."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import Batch
from brinell.core.criterion import Criterion
from brinell.core.threat import Ball
from brinell.engine.best_so_far import Best
from brinell.engine.oracle import Oracle
from brinell.ops.rowwise import put, rows, take

LEVELS = 255
# Multiples of the distance found in lower precision that are tried in float32, in order.
BEYOND = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2)
# Steps of the bisection: to a thousandth of the distance.
HALVINGS = 10


@dataclass(frozen=True)
class Verified:
    """The verification of points, one entry per point: whether it is a valid adversarial (`ok`).

    `ok_8bit` says whether the point rounded to 8 bits is a valid adversarial too. `pred` is the predicted class. Column
    k of `judged` says whether the point fooled pass k. `chosen`, for randomised models, is the number of fooled passes
    in an earlier, separate set of passes.
    """

    ok: Tensor
    pred: Tensor
    distance: Tensor
    ok_8bit: Tensor
    judged: Tensor
    chosen: Tensor | None = None


def verify_points(
    oracle: Oracle, criterion: Criterion, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, ball: Ball, draws: int = 1,
    id: Tensor | None = None,
) -> Verified:  # fmt: skip
    """Verify adversarial points on the model with fresh passes.

    For a randomised model (`draws` above 1) a point must fool more than half of `draws` passes, and then more than half
    of another `draws` passes, so that luck in the first passes does not decide.
    """
    oracle = oracle.sized("claims")

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
    oracle: Oracle, criterion: Criterion, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, ball: Ball, claimed: Tensor,
    id: Tensor | None = None,
) -> Verified:  # fmt: skip
    """Verify the points where `claimed` is true; the other points are not queried and count as not verified."""
    no = torch.zeros_like(claimed)
    nothing = Verified(no, torch.zeros_like(y), ball.distance(x0, x), no, no[:, None])
    at = claimed.nonzero()[:, 0]
    if not len(at):
        return nothing
    ids = None if id is None else id[at]
    verified = verify_points(oracle, criterion, x0[at], x[at], y[at], t[at], ball.subset(at), id=ids)
    return put(nothing, at, verified)


def refine_distance(oracle: Oracle, criterion: Criterion, r: Best, batch: Batch, target: Tensor, ball: Ball) -> Best:
    """Return the results with each adversarial moved, on the ray from its clean point, to the boundary in float32.

    The nearest adversarial in lower precision has a margin as small as the rounding error: in float32 it may lie on
    either side of the boundary. The perturbation is scaled by the factors in `BEYOND` until it succeeds, then bisected
    towards the clean point. If no factor succeeds, the point stays as it is. Cost: a forward per adversarial for
    every factor and every bisection, counted even if it is not needed.
    """
    index = r.broken.nonzero()[:, 0]
    if not len(index):
        return r
    charge = torch.full_like(index, len(BEYOND) + HALVINGS)
    r = replace(r, forwards=r.forwards.index_add(0, index, charge))
    p = take(batch, index)
    lo, hi = ball.bounds(p.x)
    way = r.x[index] - p.x

    def at(share: Tensor) -> Tensor:
        return (p.x + rows(share, way) * way).clamp(lo, hi)

    def hits(share: Tensor) -> Tensor:
        return criterion.reached(oracle.output(at(share), p.id), p.y, target[index])

    low, high = torch.zeros_like(r.distance[index]), torch.full_like(r.distance[index], torch.inf)
    for share in BEYOND:
        hit = high.isinf() & hits(torch.full_like(low, share))
        high = torch.where(hit, share, high)
        low = torch.where(high.isinf(), share, low)
        if not bool(high.isinf().any()):
            break
    held = high.isfinite()
    if not bool(held.any()):
        return r
    for _ in range(HALVINGS):
        middle = torch.where(held, (low + high) / 2, 1.0)
        hit = hits(middle)
        low, high = torch.where(held & ~hit, middle, low), torch.where(held & hit, middle, high)
    points, where = at(torch.where(held, high, 1.0))[held], index[held]
    return put(r, where, _moved(oracle, criterion, take(r, where), take(p, held), points, target[where], ball))


def _moved(oracle: Oracle, criterion: Criterion, r: Best, p: Batch, x: Tensor, target: Tensor, ball: Ball) -> Best:
    out = oracle.output(x, p.id)
    return replace(
        r, x=x, distance=ball.norm.size(x - p.x), margin=torch.maximum(r.margin, criterion.margin(out, p.y, target)),
        adv_margin=criterion.margin(out, p.y, target), adv_pred=out.logits.argmax(1),
    )  # fmt: skip
