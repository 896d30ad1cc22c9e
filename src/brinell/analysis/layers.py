"""The layers of a network, each as a function of the input."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier
from brinell.errors import ModelError, one_of
from brinell.ops.rowwise import flat

OUTPUT = "output"
Function: TypeAlias = Callable[[Tensor], Tensor]


def _module(classifier: Classifier) -> nn.Module | None:
    module = getattr(classifier, "module", None)
    return module if isinstance(module, nn.Module) else None


def default_layers(classifier: Classifier, x: Tensor) -> tuple[str, ...]:
    """The parts a network is made of, in the order they end: those with weights that run once and answer row by row.

    Parts are the module's children; of a module with a single child, that child's. The last part is left out where its
    answer is the logits. A classifier without a torch module has none.
    """
    module = _module(classifier)
    if module is None:
        return ()
    prefix = ""
    while len(parts := list(module.named_children())) == 1:
        prefix, module = f"{prefix}{parts[0][0]}.", parts[0][1]
    seen: list[tuple[str, Any]] = []
    weighty = [(f"{prefix}{name}", m) for name, m in parts if any(True for _ in m.parameters())]

    def note(name: str) -> Callable[..., None]:
        return lambda _, given, result: seen.append((name, result))

    handles = [m.register_forward_hook(note(name)) for name, m in weighty]
    try:
        with torch.no_grad():
            logits = classifier.forward(x.to(classifier.device)).logits
    finally:
        for h in handles:
            h.remove()
    calls = [name for name, _ in seen]
    sound = [(n, r) for n, r in seen if calls.count(n) == 1 and isinstance(r, Tensor) and len(r) == len(x)]
    return tuple(n for n, r in sound if r.shape != logits.shape or not torch.equal(r.float(), logits))


@contextmanager
def layer_function(classifier: Classifier, layer: str) -> Iterator[Function]:
    """The network up to a layer as a function of the input, one flat row per row; "output" is all of it."""
    if layer == OUTPUT:
        yield lambda x: classifier.forward(x).logits
        return
    module = _module(classifier)
    if module is None:
        raise ModelError(
            expected="a classifier with a torch module to look into",
            got=type(classifier).__name__,
            remedy="Leave the layers out: the output can always be looked at.",
        )
    known = dict(module.named_modules())
    seen: list[Any] = []
    handle = known[one_of("a layer", layer, known)].register_forward_hook(lambda *said: seen.append(said[2]))

    def inner(x: Tensor) -> Tensor:
        seen.clear()
        classifier.forward(x)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or len(seen[0]) != len(x):
            raise ModelError(
                expected=f"the layer {layer} to answer once, with one row per input",
                got=f"{len(seen)} answers" + ("" if len(seen) != 1 else f" of {type(seen[0]).__name__}"),
                remedy="Name a layer that every pass goes through once.",
            )
        return flat(seen[0]).float()

    try:
        yield inner
    finally:
        handle.remove()
