"""Exact answers by mixed-integer programming with HiGHS, through scipy: one binary variable per undecided neuron.

Reference: Tjeng, Xiao & Tedrake 2019. A solver's answer holds up to its tolerances, so a margin is believed only beyond
`tolerance` (docs/design/certification.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.certification.branch_and_bound import Searched
from brinell.certification.undecided import Undecided
from brinell.errors import import_extra

# An upper bound on HiGHS's tolerances for constraints and integrality, 1e-7 and 1e-6.
TOLERANCE = 1e-6
INFEASIBLE, OPTIMAL = 2, 0


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver said: its status, and the input at which the margin is smallest, if it found one."""

    status: int
    x: Tensor | None
    value: float


def tolerance(net: Undecided, target: int) -> float:
    """Return by how much the solver's tolerances can change the smallest margin.

    Every constraint of a neuron may be violated by the tolerance times the size of its coefficients. The margin changes
    by at most the product with its sensitivity to the neuron's output, through all later neurons.
    """
    sensitivity = net.margins.outputs[target].abs().clone()
    for part in reversed(net.layers):
        sensitivity += sensitivity[part] @ net.neurons.outputs[part].abs()
    inputs = net.margins.inputs[target].abs() + sensitivity @ net.neurons.inputs.abs()
    size = 3 + net.lower.abs() + net.upper.abs()
    return TOLERANCE * (1 + float(sensitivity @ size) + float(inputs.sum()))


def solve(
    net: Undecided, target: int, sign: Tensor, highest: float, seconds: float | None = None, nodes: int | None = None
) -> Solution:
    """Minimise one margin over the region, at most `highest`, with the neurons of sign ±1 fixed to be on or off.

    Only for regions that are boxes. `nodes` limits the number of branch-and-bound nodes of the solver.
    """
    optimize: Any = import_extra("scipy.optimize", "exact", "scipy, for integer programming")
    rows, lower, upper = _constraints(net, target, highest)
    n, m = net.neurons.inputs.shape[1] if net.count else net.margins.inputs.shape[1], net.count
    low, high = (v.flatten().cpu().numpy() for v in net.region.box)
    on, off = (sign > 0).double().cpu().numpy(), (sign < 0).double().cpu().numpy()
    out = (net.slope * net.lower).cpu().numpy(), net.upper.clamp(min=0).cpu().numpy()
    slack = net.neurons.slack.cpu().numpy()
    bounds = optimize.Bounds(
        np.concatenate([low, np.minimum(out[0], 0) - slack, on]), np.concatenate([high, out[1] + slack, 1 - off])
    )
    cost = torch.cat([net.margins.inputs[target], net.margins.outputs[target]]).cpu().numpy()
    options = {"mip_rel_gap": 0.0, **({} if seconds is None else {"time_limit": max(seconds, 0.01)})}
    answer = optimize.milp(
        np.concatenate([cost, np.zeros(m)]), integrality=np.repeat([0, 1], [n + m, m]), bounds=bounds,
        constraints=optimize.LinearConstraint(rows, lower, upper),
        options=options | ({} if nodes is None else {"node_limit": nodes}),
    )  # fmt: skip
    if answer.x is None:
        return Solution(int(answer.status), None, float("inf"))
    x = torch.from_numpy(answer.x[:n]).to(net.lower.device)
    value = float(answer.fun + net.margins.constant[target] - net.margins.slack[target])
    return Solution(int(answer.status), x.view(1, *net.region.x0.shape[1:]), value)


def _constraints(net: Undecided, target: int, highest: float) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the rows of the program on (input, outputs, on or off) with their lower and upper ends.

    A neuron with input z, range [l, u] and slope s below zero has h ≥ z, h ≥ s·z, h ≤ z − (1 − s)·l·(1 − on) and
    h ≤ s·z + (1 − s)·u·on, each widened by the slack of z.
    """
    sparse: Any = import_extra("scipy.sparse", "exact", "scipy, for integer programming")
    X, H, c, e = (v.cpu().numpy() for v in vars(net.neurons).values())
    s, low, high = (v.cpu().numpy() for v in (net.slope, net.lower.clamp(max=0), net.upper.clamp(min=0)))
    one, none = np.eye(net.count), np.zeros((net.count, net.count))
    scaled = s[:, None]
    blocks = [
        np.hstack([-X, one - H, none]),
        np.hstack([-scaled * X, one - scaled * H, none]),
        np.hstack([-X, one - H, np.diag(-(1 - s) * low)]),
        np.hstack([-scaled * X, one - scaled * H, np.diag(-(1 - s) * high)]),
    ]
    lower = [c - e, s * c - e, np.full_like(c, -np.inf), np.full_like(c, -np.inf)]
    upper = [np.full_like(c, np.inf), np.full_like(c, np.inf), c + e - (1 - s) * low, s * c + e]
    margin = torch.cat([net.margins.inputs[target], net.margins.outputs[target]]).cpu().numpy()
    last = np.concatenate([margin, np.zeros(net.count)])[None]
    end = highest - float(net.margins.constant[target] - net.margins.slack[target])
    return (
        sparse.csr_matrix(np.vstack([*blocks, last])),
        np.concatenate([*lower, [-np.inf]]), np.concatenate([*upper, [end]]),
    )  # fmt: skip


def exact(net: Undecided, left: Callable[[], float], misclassified: Callable[[Tensor], Tensor]) -> Searched:
    """Decide every margin by integer programming: infeasible below its tolerance, or a misclassified point.

    `left` returns the seconds that are left.
    """
    if not net.region.is_box:
        return Searched(-torch.inf, 0, "integer programming works in Linf only")
    proved, free = torch.inf, torch.zeros_like(net.lower)
    for target in range(len(net.targets)):
        least = tolerance(net, target)
        found = solve(net, target, free, 2 * least, left())
        if found.x is not None and bool(misclassified(found.x)[0]):
            return Searched(-torch.inf, target + 1, "a counterexample was found", found.x[0])
        if found.status != INFEASIBLE:
            reason = "the margin is within the solver's tolerance" if found.status == OPTIMAL else "time limit"
            return Searched(-torch.inf, target + 1, reason)
        proved = min(proved, least)
    return Searched(proved, len(net.targets))
