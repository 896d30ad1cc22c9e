"""Test the attack of an evaluation, to decide whether the robust accuracy can be trusted.

`binarization/` holds the binarization test (`test_attack`): it replaces the readout of a network so that an adversarial
example is known to exist for every sample, and counts how many of them the attack finds. `test_attacks` compares
several attacks. `probes/` holds the indicators of attack failure, and small experiments whose outcome is known if the
attack works (`probe`). `traces/` follows the loss and the accuracy over the iterations of attacks (`trace`), and finds
gradients that vanish because the logits are large (`logit_scales`). `attach` runs the test or the probes for the plan
of a finished Run and stores the outcome in the Run, where the verdict uses it. `brinell test-attack`, `brinell probe`,
`brinell evaluate --test --probe` and `brinell analyze trace` call this package.
"""

from brinell.attacks.black_box.random_sampling import Chance, RandomSampling
from brinell.finding import Finding
from brinell.reliability.attach import WithProbe, WithTest, probe_run, test_run
from brinell.reliability.binarization.planting import Design
from brinell.reliability.binarization.readouts import EnsembleReadout, LinearReadout, NeighbourReadout, PrototypeReadout
from brinell.reliability.binarization.result import BinarizationTest, KappaLevel
from brinell.reliability.binarization.several import AttackTests, test_attacks
from brinell.reliability.binarization.test import test_attack
from brinell.reliability.probes.probe import probe
from brinell.reliability.probes.result import Probes, Surface
from brinell.reliability.traces import LogitScales, Traces, logit_scales, trace

# Names of the first version.
ActiveTest, Level, Item = BinarizationTest, KappaLevel, Finding
Ensemble, Linear, Neighbours, Prototypes = EnsembleReadout, LinearReadout, NeighbourReadout, PrototypeReadout

__all__ = [
    "ActiveTest",
    "AttackTests",
    "BinarizationTest",
    "Chance",
    "Design",
    "Ensemble",
    "EnsembleReadout",
    "Item",
    "KappaLevel",
    "Level",
    "Linear",
    "LinearReadout",
    "LogitScales",
    "NeighbourReadout",
    "Neighbours",
    "Probes",
    "PrototypeReadout",
    "Prototypes",
    "RandomSampling",
    "Surface",
    "Traces",
    "WithProbe",
    "WithTest",
    "logit_scales",
    "probe",
    "probe_run",
    "test_attack",
    "test_attacks",
    "test_run",
    "trace",
]
