"""Solve, row by row, for the level at which coordinates are cut off so that their sum has a given value."""

import torch
from torch import Tensor

from brinell.ops.rowwise import flat, may_branch, rows, running_sum
from brinell.ops.types import Doubles, Points, Scalars

# Newton iterations without a convergence test. Slopes spread over ten orders of magnitude needed at most 29.
ITERATIONS = 32
# The same where all terms reach their caps at about the same q: within nine orders of magnitude at most 13 were needed.
FEW_ITERATIONS = 16
# Squared scales that differ by less are the same in float32.
CLOSE = 2.0**-26
# Thresholds that differ by less, relative to the largest term, are the same: float64 rounds sums about as much.
SAME = 2.0**-46
# More steps than bisection alone needs to bring two float64 numbers together.
BISECTIONS = 64


def water_level(c: Doubles, w: Doubles, g: Scalars) -> Scalars:
    """Return the level τ with Σ_j w_j min(c_j, τ) = g per row; inf where no level reaches g.

    The sum must not decrease as τ grows; single weights may be negative. Exact: sort the breakpoints c, find the
    segment that contains g, and solve the linear equation in it.
    """
    c, order = c.sort(dim=1, stable=True)
    w = w.gather(1, order)
    below = running_sum(w * c)
    above = w.sum(1, keepdim=True) - running_sum(w)
    k = (below + above * c < g[:, None]).sum(1, keepdim=True)
    first = torch.zeros_like(below[:, :1])
    below = torch.cat([first, below], 1).gather(1, k)[:, 0]
    above = torch.cat([w.sum(1, keepdim=True), above], 1).gather(1, k)[:, 0]
    level = (g - below) / above.clamp(min=torch.finfo(c.dtype).tiny)
    return torch.where(k[:, 0] == c.shape[1], torch.inf, level)


def capped_scale(
    v: Doubles, cap: Doubles, g: Scalars, tests: bool | None = None, iterations: int = ITERATIONS
) -> Scalars:
    """Return the q ≥ 0 with Σ_j min(q v_j, cap_j) = g per row, for v, cap ≥ 0; inf if no q is large enough.

    Newton's method from the left. The sum is concave and piecewise linear in q, so q only grows, never passes the
    solution, and stops once the set of capped terms stops changing, usually after a few iterations. On a CPU the loop
    ends when all rows have converged. On other devices testing for this costs more than a fixed number of `iterations`.
    `tests` overrides this choice: True tests for convergence, False runs `iterations`.
    """
    if tests is None:
        tests = v.device.type == "cpu" and not torch.compiler.is_compiling()
    q = g / v.sum(1).clamp(min=torch.finfo(v.dtype).tiny)
    if tests and may_branch(v) and not bool(cap.isinf().any()):
        return _converged(v, cap, g, q)
    for _ in range(v.shape[1] + 1 if tests else iterations):
        capped = q[:, None] * v >= cap
        full, rest = torch.where(capped, cap, 0.0).sum(1), torch.where(capped, 0.0, v).sum(1)
        q_next = _next_scale(q, g, full, rest)
        if tests and torch.equal(q, q_next):
            break
        q = q_next
    return q


def _next_scale(q: Scalars, g: Scalars, full: Scalars, rest: Scalars) -> Scalars:
    return torch.maximum(q, torch.where(rest > 0, (g - full) / rest, torch.inf))


def _converged(v: Doubles, cap: Doubles, g: Scalars, q: Scalars) -> Scalars:
    """Return the result of the iteration in `capped_scale` from q, with the same bits, for finite caps on a CPU.

    A product with 0 or 1 is exact and faster than a choice; memory is used again; rows that have converged leave once
    they are half of all rows.
    """
    free, full, capped = torch.empty_like(v), torch.empty_like(v), torch.empty_like(v, dtype=torch.bool)
    row, result = torch.arange(len(q), device=q.device), q.clone()
    for _ in range(v.shape[1] + 1):
        torch.ge(torch.mul(v, q[:, None], out=free), cap, out=capped)
        torch.mul(cap, free.copy_(capped), out=full)
        q_next = _next_scale(q, g, full.sum(1), free.neg_().add_(1).mul_(v).sum(1))
        moved = (q_next != q).nonzero()[:, 0]
        result[row], q = q_next, q_next
        if not len(moved):
            break
        # Not down to a single row, whose sum is split over threads and rounds differently.
        if 2 <= len(moved) <= len(q) // 2:
            v, cap, g, q, row = v[moved], cap[moved], g[moved], q[moved], row[moved]
            free, full, capped = (buffer[: len(moved)] for buffer in (free, full, capped))
    return result


def soft_threshold(v: Doubles, allowed: Doubles, g: Scalars) -> Scalars:
    """Return the least λ ≥ 0 with Σ_j min(max(v_j − λ, 0), allowed_j) ≤ g per row, for 0 ≤ allowed ≤ v, on a CPU.

    Newton's method between bounds: the sum is piecewise linear in λ and falls, so a step is exact once the set of free
    terms is right; a step out of the bounds is replaced by their middle. Rows that have converged leave once they are
    half of all rows.
    """
    cut = torch.zeros_like(g)
    row = (torch.minimum(v, allowed).sum(1) > g).nonzero()[:, 0]
    if not len(row):
        return cut
    if len(row) < len(g) or len(row) == 1:
        # Not a single row, whose sum is split over threads and rounds differently.
        row = row if len(row) > 1 else row.repeat(2)
        v, allowed, g = v[row], allowed[row], g[row]
    low, high, level = torch.zeros_like(g), v.amax(1), torch.zeros_like(g)
    close = high * SAME
    for _ in range(BISECTIONS):
        kept = v - level[:, None]
        free = ((kept > 0) & (kept <= allowed)).sum(1)
        over = torch.minimum(kept.clamp_(min=0), allowed, out=kept).sum(1) - g
        low, high = torch.where(over > 0, level, low), torch.where(over < 0, level, high)
        step = level + over / free
        level, before = torch.where((step > low) & (step < high), step, (low + high) / 2), level
        level = torch.where(over == 0, before, level)
        cut[row] = level
        left = ((level - before).abs() > close).nonzero()[:, 0]
        if not len(left):
            break
        if 2 <= len(left) <= len(row) // 2:
            parts = v, allowed, g, low, high, level, close, row
            v, allowed, g, low, high, level, close, row = (part[left] for part in parts)
    return cut


def scaled(d: Points, eps: Scalars, lo: Points, hi: Points) -> Points:
    """Return min(s, 1) · d clipped to the box lo ≤ 0 ≤ hi, with the s per row for which its Euclidean norm is eps.

    The same Newton iteration as `capped_scale` on squares, for a CPU. Coordinates are float32, sums are float64: the
    squares round by at most 2⁻²⁴ each, and so does the length. Rows that lie in the ball after clipping are done at
    once, and rows whose box does not bind after one iteration.
    """
    e = eps.double().square()
    clipped = d.clamp(lo, hi)
    outside = _squares(clipped) > e
    if not bool(outside.any()):
        return clipped
    # Coordinates that cannot move are left out of the first guess.
    free = flat(d) * flat(clipped).sign().abs_()
    total = _squares(free)
    q = torch.where(outside, e / total.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
    cut = None
    for _ in range(free.shape[1] + 1):
        ahead = d * rows(q.sqrt().to(d.dtype), d)
        point = ahead.clamp(lo, hi)
        cut, before = flat(ahead.sub_(point)).sign_().abs_(), cut
        if before is not None and torch.equal(cut, before):
            break  # the same coordinates are cut off: q stays as it is
        capped = _squares(flat(point) * cut)
        rest = _squares(free * cut.neg().add_(1))
        q_next = torch.where(outside & (rest > 0), (e - capped) / rest, q)
        q_next = torch.maximum(q, q_next).clamp(max=1)
        if bool((q_next <= q * (1 + CLOSE)).all()):
            break
        q = q_next
    return point


def _squares(v: Tensor) -> Scalars:
    return flat(v).square().sum(1, dtype=torch.float64)
