"""Whether an evaluation can be trusted: tests of the attack itself."""

from brinell.reliability.active import test_attack
from brinell.reliability.binary import Design
from brinell.reliability.chance import Chance
from brinell.reliability.outcome import ActiveTest, Level
from brinell.reliability.readouts import Ensemble, Linear, Neighbours, Prototypes

__all__ = ["ActiveTest", "Chance", "Design", "Ensemble", "Level", "Linear", "Neighbours", "Prototypes", "test_attack"]
