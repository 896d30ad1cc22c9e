"""Classifiers: wrapped torch modules, adapters for other frameworks, and published models.

`wrap` makes a `TorchClassifier` from a torch module, with an optional `detector`; `outputs` finds the logits in what a
module returns; `functions` makes models of functions and estimators. `bpda` replaces the gradient of a layer;
`surrogate` makes a classifier of part of a model, or goes straight through some layers; `targeted` tells a chosen class
from all others; `smoothed` takes a vote over noise. `adapters` make classifiers from JAX, TensorFlow, ONNX,
scikit-learn, functions and HTTP services. `zoo` loads published checkpoints into the networks of
`arch`; `checkpoint` reads them safely. `by_name` loads any model that a user names. `networks` holds what `brinell
train` trains; `demo` holds the small model that is part of the package. `fast_copy` makes the inference copies that the
engine uses on a GPU.
"""

from brinell.models.adapters import from_function, from_http, from_jax, from_onnx, from_sklearn, from_tensorflow
from brinell.models.bpda import bpda
from brinell.models.detector import Detector, inverted
from brinell.models.smoothed import Smoothed, Smoothing, smoothed
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo import Card, build, cards, load

__all__ = [
    "Card",
    "Detector",
    "Smoothed",
    "Smoothing",
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
    "smoothed",
    "wrap",
]
