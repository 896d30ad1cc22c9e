"""Small copies of published defences that were broken later, each with its original and a stronger evaluation.

They show that the binarization test detects flawed evaluations and passes stronger ones (`brinell gallery`).
`catalogue` lists the defences with their evaluations; `measure` runs the original and the stronger evaluation of a
defence and tests both. `models` builds the defended classifiers from `base_networks` (small networks trained on demo
images), `layers` (what each defence adds) and `detectors`. `readouts` are for defences without a linear readout. `plot`
draws results.
"""

from brinell.defences.catalogue import DEFENCES, Defence, Evaluation, find
from brinell.defences.measure import DefenceResult, EvaluationResult, measure

# Names of the first version.
Measured, Row = EvaluationResult, DefenceResult

__all__ = [
    "DEFENCES",
    "Defence",
    "DefenceResult",
    "Evaluation",
    "EvaluationResult",
    "Measured",
    "Row",
    "find",
    "measure",
]
