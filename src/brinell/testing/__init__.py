"""For writers of attacks, norms and classifiers: conformance checks, and worlds with known answers."""

from brinell.testing.conformance import check_attack, check_classifier, check_norm
from brinell.testing.worlds import LinearWorld, duel, linear_world

__all__ = ["LinearWorld", "check_attack", "check_classifier", "check_norm", "duel", "linear_world"]
