"""Compute the output of any layer of a network as a function of the input."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from brinell.core.model import Classifier
from brinell.errors import ModelError, one_of
from brinell.models.wrap import require_module
from brinell.ops.rowwise import flat

OUTPUT = "output"
Function: TypeAlias = Callable[[Tensor], Tensor]


def default_layers(classifier: Classifier, x: Tensor) -> tuple[str, ...]:
    """Return the names of the layers to analyse, in the order of the forward pass; () without a torch module.

    They are the direct children of the network that have weights, run once per pass and return one row per input; a
    network with a single child is first replaced by this child. A layer whose output is the logits is left out.
    """
    module = classifier.torch_module
    if module is None:
        return ()
    prefix = ""
    while len(children := list(module.named_children())) == 1:
        prefix, module = f"{prefix}{children[0][0]}.", children[0][1]
    outputs: list[tuple[str, Any]] = []
    weighted = [(f"{prefix}{name}", m) for name, m in children if any(True for _ in m.parameters())]

    def record(name: str) -> Callable[..., None]:
        return lambda _, given, result: outputs.append((name, result))

    handles = [m.register_forward_hook(record(name)) for name, m in weighted]
    try:
        with torch.no_grad():
            logits = classifier.forward(x.to(classifier.device)).logits
    finally:
        for h in handles:
            h.remove()
    calls = [name for name, _ in outputs]
    row_wise = [(n, r) for n, r in outputs if calls.count(n) == 1 and isinstance(r, Tensor) and len(r) == len(x)]
    return tuple(n for n, r in row_wise if r.shape != logits.shape or not torch.equal(r.float(), logits))


@contextmanager
def layer_function(classifier: Classifier, layer: str) -> Iterator[Function]:
    """Yield a function from a batch of inputs to the layer's flattened outputs; for "output", to the logits."""
    if layer == OUTPUT:
        yield lambda x: classifier.forward(x).logits
        return
    module = require_module(classifier, remedy="Omit `layers` (--layer) to analyse the logits.")
    known = dict(module.named_modules())
    seen: list[Any] = []
    handle = known[one_of("a layer", layer, known)].register_forward_hook(lambda _, __, result: seen.append(result))

    def inner(x: Tensor) -> Tensor:
        seen.clear()
        classifier.forward(x)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or len(seen[0]) != len(x):
            raise ModelError(
                expected=f"the layer {layer} to run once per forward pass and to return one row per input",
                got=f"{len(seen)} outputs" + ("" if len(seen) != 1 else f" of {type(seen[0]).__name__}"),
                remedy="Name other layers, or omit `layers` (--layer) for all suitable layers.",
            )
        return flat(seen[0]).float()

    try:
        yield inner
    finally:
        handle.remove()
