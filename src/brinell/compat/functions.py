"""Models of other libraries' scripts: modules, or functions from images to logits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import InputError
from brinell.models.wrap import wrap


class Function(nn.Module):
    """A module that applies a function from images to logits."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def as_classifier(model: Any, device: torch.device | str | None = None) -> Classifier:
    """Return a module, a function from images to logits, or a Classifier as a Classifier on a device."""
    if isinstance(model, Classifier):
        classifier = model
    else:
        classifier = wrap(model if isinstance(model, nn.Module) else Function(model).eval())
    return classifier if device is None else classifier.to(torch.device(device))


def predictions(classifier: Classifier, x: Tensor) -> Tensor:
    """Return the predicted classes, on the CPU, computed in blocks as in an evaluation."""
    oracle = Oracle(classifier, default_block(classifier.device))
    with exact(classifier.device):
        # As in the evaluation: points on the decision boundary keep their class.
        labels = [oracle.output(part.to(classifier.device)).logits.argmax(1) for part in x.detach().split(oracle.block)]
    return torch.cat(labels).to("cpu")


def refuse_unless(sound: bool, expected: str, got: str, remedy: str) -> None:
    """Raise an InputError about an option of another library that Brinell does not have, unless `sound`."""
    if not sound:
        raise InputError(expected=expected, got=got, remedy=remedy)
