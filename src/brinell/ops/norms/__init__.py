"""The norms Linf, L2, L1 and L0. Only this folder depends on p of Lp: all other code calls a `Norm`.

`base` declares what a norm provides: sizes, dual sizes, exact projections on ball ∩ box, steepest steps, shortest
steps to a hyperplane, proximal steps and random points. `linf`, `l2`, `l1` and `l0` implement it. They share
`hyperplane` (the order in which coordinates move towards a hyperplane) and `water_filling` (the level at which
coordinates are cut off so that a sum has a given value). Displacements d are measured from the clean point, and
lo ≤ d ≤ hi keeps the displaced point in the box. Called by `brinell.core.threat` and by the attacks.
"""

from brinell.ops.norms.base import INSIDE, TINY, Bound, Norm, inward
from brinell.ops.norms.l0 import L0Norm, kept
from brinell.ops.norms.l1 import L1Norm
from brinell.ops.norms.l2 import L2Norm
from brinell.ops.norms.linf import LinfNorm

LINF, L2, L1, L0 = LinfNorm(), L2Norm(), L1Norm(), L0Norm()
NORMS: dict[str, Norm] = {norm.name: norm for norm in (LINF, L2, L1)}
"""The three norms, by name. An attack works in all of them unless its `norms` says otherwise."""
SIZES: dict[str, Norm] = {**NORMS, L0.name: L0}
"""The norms and L0. Only attacks that list L0 in their `norms` work in it."""

__all__ = [
    "INSIDE", "L0", "L1", "L2", "LINF", "NORMS", "SIZES", "TINY", "Bound", "L0Norm", "L1Norm", "L2Norm",
    "LinfNorm", "Norm", "inward", "kept",
]  # fmt: skip
