"""Anything that can be attacked becomes a `Classifier` here; published models come from the zoo."""

from brinell.models.bpda import bpda
from brinell.models.detector import Detector, inverted
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo import Card, build, cards, load

__all__ = ["Card", "Detector", "TorchClassifier", "bpda", "build", "cards", "inverted", "load", "wrap"]
