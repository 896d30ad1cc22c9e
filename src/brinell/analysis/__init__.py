"""Analyses of models and Runs beyond robust accuracy: each a function whose result has numbers and findings."""

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
    "Privacy",
    "Shift",
    "Smoothness",
    "Transferability",
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
