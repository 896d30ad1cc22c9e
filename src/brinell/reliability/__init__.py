"""Can an evaluation be believed: tests of the attack itself, and signs that it failed for reasons of its own."""

from brinell.reliability.active import test_attack
from brinell.reliability.chance import Chance
from brinell.reliability.items import Item, Probes, Surface
from brinell.reliability.outcome import ActiveTest, Level
from brinell.reliability.planting import Design
from brinell.reliability.probes import probe
from brinell.reliability.readouts import Ensemble, Linear, Neighbours, Prototypes
from brinell.reliability.tested import WithProbe, WithTest, probe_run, test_run

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
