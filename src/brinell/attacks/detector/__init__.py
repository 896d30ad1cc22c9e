"""Attacks on a classifier and its detector together: the input must be misclassified and accepted.

`joint`: any attack on one loss made of the classifier's loss and the detector's score. `selective`: PGD that follows
one of the two gradients at a time. `alternating`: the shortest step that meets both conditions to first order, then a
projection on the threat. `matching`: imitation of a natural, accepted input of another class.
"""

from brinell.attacks.detector.alternating import Alternating
from brinell.attacks.detector.joint import Joint
from brinell.attacks.detector.matching import Matching
from brinell.attacks.detector.selective import SelectivePGD

__all__ = ["Alternating", "Joint", "Matching", "SelectivePGD"]
