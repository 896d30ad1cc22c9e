"""Anything that can be attacked becomes a `Classifier` here; published models come from the zoo."""

from brinell.models.adapters import from_function, from_http, from_jax, from_onnx, from_sklearn, from_tensorflow
from brinell.models.bpda import bpda
from brinell.models.detector import Detector, inverted
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo import Card, build, cards, load

__all__ = [
    "Card",
    "Detector",
    "TorchClassifier",
    "bpda",
    "build",
    "cards",
    "from_function",
    "from_http",
    "from_jax",
    "from_onnx",
    "from_sklearn",
    "from_tensorflow",
    "inverted",
    "load",
    "wrap",
]
