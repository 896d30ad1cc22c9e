"""Can an evaluation be believed: tests of the attack itself, and signs that it failed for reasons of its own."""

from brinell.attacks.black_box.random_sampling import Chance
from brinell.reliability.attach import WithProbe, WithTest, probe_run, test_run
from brinell.reliability.binarization.planting import Design
from brinell.reliability.binarization.readouts import Ensemble, Linear, Neighbours, Prototypes
from brinell.reliability.binarization.result import ActiveTest, Level
from brinell.reliability.binarization.test import test_attack
from brinell.reliability.probes.items import Item, Probes, Surface
from brinell.reliability.probes.probe import probe

__all__ = [
    "ActiveTest",
    "Chance",
    "Design",
    "Ensemble",
    "Item",
    "Level",
    "Linear",
    "Neighbours",
    "Probes",
    "Prototypes",
    "Surface",
    "WithProbe",
    "WithTest",
    "probe",
    "probe_run",
    "test_attack",
    "test_run",
]
