"""What all adapters share: a module whose numbers are computed elsewhere, and how answers become logits."""

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brinell.errors import InputError, MissingExtra, ModelError, first_line, one_of
from brinell.models.wrap import TorchClassifier, wrap

OUTPUTS = ("logits", "probabilities", "labels")
# Smaller probabilities count as this one: its logarithm is finite, and float32 can hold it.
FLOOR = 1e-30

Pull = Callable[[Tensor], Tensor]
"""The gradient at the logits in, the gradient at the input out."""


def framework(module: str, extra: str, what: str) -> Any:
    """The module of that name, or an error that says which extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(
            expected=f"the package {module.partition('.')[0]} for {what}",
            got="an installation without it",
            remedy=f"Install it: pip install 'brinell[{extra}]'.",
        ) from None


class Bridge(nn.Module, ABC):
    """A module without parameters of its own, whose answers another framework computes.

    `mark` stands for the weights in the classifier's fingerprint, `stored` are the kinds of numbers they are kept in.
    It stays where its framework has put it; the inputs come from, and the answers go to, any device of torch.
    """

    def __init__(self, mark: str, stored: Iterable[str] = ()) -> None:
        super().__init__()
        _keep_from_compilers()
        self.mark, self.stored = mark, frozenset(stored)
        self.eval()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _keep_from_compilers()

    def extra_repr(self) -> str:
        """Part of what the classifier's fingerprint is made of."""
        return self.mark

    @abstractmethod
    def answer(self, x: Tensor) -> Tensor:
        """The logits of a batch, on x's device; x needs no gradient."""

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pull]:
        """The logits, and the function that takes gradients back; it may be called more than once."""
        raise ModelError(
            expected="a model with gradients with respect to its input",
            got=f"{type(self).__name__}, a black box",
            remedy="Use a plan without gradients (blackbox).",
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits; with their history where a gradient may be asked for."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("another framework computes the answers")
        if torch.is_grad_enabled() and x.requires_grad:
            return _Through.apply(x, self)
        return self.answer(x.detach())


@cache
def _keep_from_compilers() -> None:
    """What another framework does cannot be compiled into torch's kernels.

    Said when there is such a model, not before: it imports the compiler, which takes as long as importing torch.
    """
    apart: Any = torch.compiler.disable(Bridge.forward)
    Bridge.forward = apart  # type: ignore[method-assign]


class _Through(torch.autograd.Function):
    """Forward and backward in the other framework."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bridge: Bridge) -> Tensor:
        logits, ctx.pull = bridge.differentiate(x.detach())
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.pull(grads[0]), None


class Ordered(nn.Module):
    """A bridge that wants the channels of an image last."""

    def __init__(self, inner: Bridge) -> None:
        super().__init__()
        self.inner, self.stored = inner, inner.stored
        self.eval()

    def forward(self, x: Tensor) -> Any:
        """The same with the second axis moved to the end."""
        return self.inner(x.movedim(1, -1).contiguous())


def classifier(
    bridge: Bridge,
    *,
    name: str,
    differentiable: bool,
    channels_last: bool = False,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    allow: Iterable[str] = (),
    device: torch.device | None = None,
    detector: Any = None,
) -> TorchClassifier:
    """The bridge as a classifier, with all that `brinell.wrap` offers."""
    module = Ordered(bridge) if channels_last else bridge
    made = wrap(module, mean, std, name=name, allow=allow, differentiable=differentiable, detector=detector)
    return made if device is None else made.to(device)


def digest(parts: Iterable[tuple[str, Any]], *more: str) -> str:
    """sha256 of named arrays and of some words."""
    h = hashlib.sha256("\0".join(more).encode())
    for key, value in parts:
        array = np.ascontiguousarray(value)
        h.update(f"\0{key}{array.dtype}{array.shape}".encode() + array.tobytes())
    return h.hexdigest()


def versioned(what: str, version: str | None) -> str:
    """The version, which stands for what cannot be read."""
    if not isinstance(version, str) or not version:
        raise InputError(
            expected=f"a version for {what}, since its weights cannot be read",
            got=repr(version),
            remedy='Write version="2026-03", and another one whenever the model changes: Runs are told apart by it.',
        )
    return version


def numbers(x: Tensor) -> Any:
    """A batch as an array of its own, float32."""
    return x.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def as_logits(raw: Any, outputs: str, rows: int, classes: int | None = None) -> Tensor:
    """What a black box said as float32 logits: as it is, the logarithm of probabilities, or ±½ for a label.

    >>> as_logits([[0.25, 0.75]], "probabilities", 1)
    tensor([[-1.3863, -0.2877]])
    >>> as_logits([2, 0], "labels", 2, classes=3)
    tensor([[-0.5000, -0.5000,  0.5000],
            [ 0.5000, -0.5000, -0.5000]])
    """
    one_of("outputs", outputs, OUTPUTS)
    try:
        said = np.asarray(raw)
        said = said.astype(np.int64 if outputs == "labels" else np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        kind = "whole numbers" if outputs == "labels" else "numbers"
        raise _wrong(f"{outputs} as an array of {kind}", first_line(error)) from None
    if said.ndim not in ((1,) if outputs == "labels" else (1, 2)) or len(said) != rows:
        shape = f"({rows},)" if outputs == "labels" else f"({rows}, classes)"
        raise _wrong(f"{outputs} of shape {shape} for {rows} inputs", f"shape {said.shape}")
    if outputs == "labels":
        return _from_labels(torch.from_numpy(said), classes)
    if outputs == "probabilities":
        return _from_probabilities(said)
    return torch.from_numpy(said).float()


def _wrong(expected: str, got: str) -> ModelError:
    return ModelError(expected=expected, got=got, remedy=f"Return one row per input; outputs: {', '.join(OUTPUTS)}.")


def _from_labels(said: Tensor, classes: int | None) -> Tensor:
    if classes is None or classes < 2:
        raise InputError(
            expected="the number of classes, at least 2, of a model that only gives labels",
            got=f"classes = {classes}",
            remedy="Write classes=10.",
        )
    if len(said) and not (int(said.min()) >= 0 and int(said.max()) < classes):
        raise _wrong(f"labels in 0..{classes - 1}", f"labels from {int(said.min())} to {int(said.max())}")
    # Halves, not 0 and 1, which would be probabilities; margins are ±1.
    return nn.functional.one_hot(said, classes).float() - 0.5


def _from_probabilities(said: Any) -> Tensor:
    if said.ndim == 1:  # that of the second of two classes
        said = np.stack([1 - said, said], 1)
    if said.size and not (said.min() >= -1e-6 and said.max() <= 1 + 1e-6):
        raise _wrong("probabilities between 0 and 1", f"values from {said.min():.3g} to {said.max():.3g}")
    return torch.from_numpy(np.log(np.maximum(said, FLOOR))).float()
