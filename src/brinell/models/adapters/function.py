"""Any function of arrays, as a black box."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from brinell.errors import one_of
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, digest, numbers, versioned
from brinell.models.wrap import TorchClassifier


class FunctionBridge(Bridge):
    """A function of an array (n, …), float32 in [0, 1], that answers with one row each."""

    def __init__(self, function: Callable[..., Any], mark: str, outputs: str, classes: int | None) -> None:
        super().__init__(mark)
        self.function, self.outputs, self.classes = function, outputs, classes

    def answer(self, x: Tensor) -> Tensor:
        """One call."""
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
    """A black box from a function of a numpy array: a batch in [0, 1] in, logits, probabilities or labels out.

    Method: probabilities become logits by a logarithm, at least log 1e-30; labels become ±½, with margins of ±1, and
    need the number of `classes`. The fingerprint is that of the function's name, `outputs` and `version`, since what
    else decides the answers cannot be read: give another version whenever they change.

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
