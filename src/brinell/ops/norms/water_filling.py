"""Solve, row by row, for the level at which coordinates are cut off so that their sum has a given value."""

import torch

from brinell.ops.rowwise import running_sum
from brinell.ops.types import Doubles, Scalars

# Newton iterations without a convergence test. Slopes spread over ten orders of magnitude needed at most 29.
ITERATIONS = 32
# The same where all terms reach their caps at about the same q: within nine orders of magnitude at most 13 were needed.
FEW_ITERATIONS = 16


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
    for _ in range(v.shape[1] + 1 if tests else iterations):
        capped = q[:, None] * v >= cap
        rest = torch.where(capped, 0.0, v).sum(1)
        q_next = torch.where(rest > 0, (g - torch.where(capped, cap, 0.0).sum(1)) / rest, torch.inf)
        q_next = torch.maximum(q, q_next)
        if tests and torch.equal(q, q_next):
            break
        q = q_next
    return q
