"""`accuracy` of a model; `samples` are those of `brinell.data`."""

from typing import Any

from torch import Tensor

from brinell.compat.foolbox.models import PyTorchModel
from brinell.compat.functions import predictions
from brinell.compat.missing import refuse_name

__all__ = ["accuracy"]
# What Foolbox has here and this module has not, by what to use.
INSTEAD = {"samples": 'brinell.data.load("demo", n), or your own images and labels'}


def accuracy(fmodel: PyTorchModel, inputs: Tensor, labels: Tensor) -> float:
    """Return the share of inputs that the model classifies as their labels."""
    return float((predictions(fmodel.classifier, fmodel.inwards(inputs)) == labels.cpu()).float().mean())


def __getattr__(name: str) -> Any:
    """Raise that Foolbox's name is missing here; the remedy names what to use."""
    refuse_name(__name__, name, __all__, INSTEAD)
