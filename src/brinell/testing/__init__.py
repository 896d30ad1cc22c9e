"""Conformance checks for authors of attacks, norms and classifiers, and models with known distances.

`attacks`, `norms` and `classifiers` hold `check_attack`, `check_norm` and `check_classifier`. A failed check raises
AssertionError that names the broken rule. `worlds` holds linear and ReLU models whose distances to the decision
boundary are known in closed form. `runs` changes stored Runs by hand. The tests of Brinell use them too.
"""

from brinell.testing.attacks import check_attack
from brinell.testing.classifiers import check_classifier
from brinell.testing.norms import check_norm
from brinell.testing.worlds import LinearWorld, ReluWorld, duel, linear_world, relu_world

__all__ = [
    "LinearWorld", "ReluWorld", "check_attack", "check_classifier", "check_norm", "duel", "linear_world",
    "relu_world",
]  # fmt: skip
