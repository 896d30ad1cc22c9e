"""For writers of attacks, norms and classifiers: conformance checks, and worlds with known answers."""

from brinell.testing.attacks import check_attack
from brinell.testing.classifiers import check_classifier
from brinell.testing.norms import check_norm
from brinell.testing.worlds import LinearWorld, ReluWorld, duel, linear_world, relu_world

__all__ = [
    "LinearWorld",
    "ReluWorld",
    "check_attack",
    "check_classifier",
    "check_norm",
    "duel",
    "linear_world",
    "relu_world",
]
