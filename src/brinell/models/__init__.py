"""Anything that can be attacked becomes a `Classifier` here."""

from brinell.models.bpda import bpda
from brinell.models.wrap import TorchClassifier, wrap

__all__ = ["TorchClassifier", "bpda", "wrap"]
