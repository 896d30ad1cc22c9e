"""Adapter for a function of numpy arrays, as a black box."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from brinell.errors import one_of
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, digest, numbers, versioned
from brinell.models.wrap import TorchClassifier


class FunctionBridge(Bridge):
    """A bridge to a numpy function that maps a float32 array (n, …) in [0, 1] to one row of outputs per input."""

    def __init__(self, function: Callable[..., Any], mark: str, outputs: str, classes: int | None) -> None:
        super().__init__(mark)
        self.function, self.outputs, self.classes = function, outputs, classes

    def logits(self, x: Tensor) -> Tensor:
        return as_logits(self.function(numbers(x)), self.outputs, len(x), self.classes).to(x.device)


def from_function(
    function: Callable[..., Any],
    *,
    version: str,
    outputs: str = "logits",
    classes: int | None = None,
    name: str | None = None,
    channels_last: bool = False,
    allow: Iterable[str] = (),
) -> TorchClassifier:
    """Make a black box from a function that maps a numpy batch in [0, 1] to logits, probabilities or labels.

    Method: logits are used unchanged; probabilities become their log, at least log 1e-30; labels become ±½, with
    margins of ±1, and need the number of `classes`. The fingerprint covers the function's name, `outputs` and
    `version`; the weights cannot be read, so change the version whenever the model changes.

    >>> import numpy as np
    >>> import torch
    >>> threshold = from_function(lambda x: x.mean(1) > 0.5, version="1", outputs="labels", classes=2)
    >>> threshold.forward(torch.tensor([[0.2, 0.4], [0.9, 0.8]])).logits.argmax(1)
    tensor([0, 1])
    """
    one_of("outputs", outputs, OUTPUTS)
    label = getattr(function, "__qualname__", type(function).__name__)
    mark = digest((), "function", label, outputs, str(classes), versioned("a function", version))
    bridge = FunctionBridge(function, mark, outputs, classes)
    label = name if name is not None else label
    return classifier(bridge, name=label, differentiable=False, channels_last=channels_last, allow=allow)
