"""Anything that can be attacked becomes a `Classifier` here."""

from brinell.models.bpda import bpda
from brinell.models.detector import Detector, inverted
from brinell.models.wrap import TorchClassifier, wrap

__all__ = ["Detector", "TorchClassifier", "bpda", "inverted", "wrap"]
