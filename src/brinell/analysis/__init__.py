"""Analyses of models and Runs beyond robust accuracy. Each analysis is a function whose result has intervals.

`calibration`, `detection` of out-of-distribution inputs, distribution `shift` and `corruptions/` look at clean accuracy
and confidence. `fairness` over classes, `privacy` (membership inference), `smoothness` (local Lipschitz constants of a
network and its `layers`) and `transfer` of adversarials between models use attacks or Runs.
`rescalings` compares the minimum-margin attack under seven rescalings of the logits (`brinell.rescalings`).
`across_models` applies an analysis to many models.
`predictions` computes logits on clean inputs, stored adversarials or new attack points; `intervals` computes and
formats confidence intervals.
`plot` draws the figures of a report. `brinell analyze` and `brinell corruptions` call this package.
"""

from brinell.analysis.across_models import ModelResults, across_models, across_runs
from brinell.analysis.calibration import Calibration, calibration
from brinell.analysis.corruptions import CorruptionReport, corruption_accuracy
from brinell.analysis.detection import Detection, detection, synthetic
from brinell.analysis.fairness import Fairness, fairness
from brinell.analysis.privacy import Privacy, privacy
from brinell.analysis.shift import Shift, shift
from brinell.analysis.smoothness import Smoothness, smoothness
from brinell.analysis.transfer import Transferability, transfer

__all__ = [
    "Calibration",
    "CorruptionReport",
    "Detection",
    "Fairness",
    "ModelResults",
    "Privacy",
    "Shift",
    "Smoothness",
    "Transferability",
    "across_models",
    "across_runs",
    "calibration",
    "corruption_accuracy",
    "detection",
    "fairness",
    "privacy",
    "shift",
    "smoothness",
    "synthetic",
    "transfer",
]
