"""Optimality of an attack: the area above its curve as a share of the area above the best known curve."""

from typing import TYPE_CHECKING

import numpy as np

from brinell.errors import InputError

if TYPE_CHECKING:
    from brinell.curves.curve import Curve


def optimality(attack: "Curve", *best: "Curve") -> float:
    """Return the local optimality of an attack, 1 for the best known distances and 0 if it breaks nothing up to ε0.

    Method: ξ = ∫₀^ε0 (ρ(0) − ρ_a(ε)) dε / ∫₀^ε0 (ρ(0) − ρ*(ε)) dε. ρ_a is the robust accuracy under the attack, ρ*
    that under the smallest distance of each sample, its own included. ε0 is the radius at which ρ* reaches its
    smallest value: the largest distance that is known. All curves are of one model and the same samples; the integrals
    of step functions are exact. Reference: Cinà et al. 2025, AttackBench: evaluating gradient-based attacks for
    adversarial examples (ε0: where the best curve is 0).
    Limits: relative to the attacks that were run. It is 1 for a weak attack that nothing stronger was compared with.
    """
    joined = attack
    for other in best:
        odd = int(((attack.distances == 0) != (other.distances == 0)).sum()) if len(other.ids) == len(attack.ids) else 0
        if odd:
            raise InputError(
                expected="curves of one model, with the same misclassified samples",
                got=f"{odd} samples that only one of them misclassifies",
                remedy="Measure both with the same model.",
            )
        joined = joined.joined(other)
    correct = attack.distances > 0
    mine, least = attack.distances[correct], joined.distances[correct]
    known = least[np.isfinite(least)]
    if not len(known):
        raise InputError(
            expected="a correctly classified sample with a known distance",
            got="none",
            remedy="Measure with a stronger plan, such as minimal.",
        )
    end = float(known.max())
    whole = float(np.maximum(end - least, 0.0).sum())
    # All known distances are equal: the share of these samples that the attack breaks at this distance.
    return float(np.maximum(end - mine, 0.0).sum()) / whole if whole else float((mine <= end).sum()) / len(known)
