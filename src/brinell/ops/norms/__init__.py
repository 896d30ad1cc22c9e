"""The norms Linf, L2, L1 and L0. Only this folder tells them apart: all other code calls a `Norm`.

`base` declares what a norm provides: sizes, dual sizes, exact projections on ball ∩ box, steepest steps, shortest
steps to a hyperplane, proximal steps and random points. `linf`, `l2`, `l1` and `l0` implement it. They share
`hyperplane` (the order in which coordinates move towards a hyperplane) and `water_filling` (the level at which
coordinates are cut off so that a sum has a given value). Displacements d are measured from the clean point, and
lo ≤ d ≤ hi keeps the displaced point in the box. `brinell.core.threat` and the attacks call them.
"""

from brinell.ops.norms.base import INSIDE, TINY, Bound, Norm, inward
from brinell.ops.norms.l0 import L0Norm, kept
from brinell.ops.norms.l1 import L1Norm
from brinell.ops.norms.l2 import L2Norm
from brinell.ops.norms.linf import LinfNorm

LINF, L2, L1, L0 = LinfNorm(), L2Norm(), L1Norm(), L0Norm()
NORMS: dict[str, Norm] = {norm.name: norm for norm in (LINF, L2, L1)}
"""Linf, L2 and L1 by name. An attack works in all three unless its `norms` lists others."""
SIZES: dict[str, Norm] = {**NORMS, L0.name: L0}
"""Linf, L2, L1 and L0 by name. Only attacks that list L0 in their `norms` work in L0."""

__all__ = [
    "INSIDE", "L0", "L1", "L2", "LINF", "NORMS", "SIZES", "TINY", "Bound", "L0Norm", "L1Norm", "L2Norm",
    "LinfNorm", "Norm", "inward", "kept",
]  # fmt: skip
