"""The base of all adapters: a torch module whose outputs another framework computes, and conversion to logits."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brinell.errors import InputError, ModelError, first_line, import_extra, one_of
from brinell.models.wrap import TorchClassifier, wrap

OUTPUTS = ("logits", "probabilities", "labels")
PROBABILITIES = OUTPUTS[1]
# The smallest probability: its logarithm is finite and representable in float32.
FLOOR = 1e-30

Pullback = Callable[[Tensor], Tensor]
"""Maps the gradient at the logits to the gradient at the input."""


def framework(module: str, extra: str, what: str) -> Any:
    """Return the imported framework, or raise an error that names the pip extra to install."""
    return import_extra(module, extra, f"the package {module.partition('.')[0]} for {what}")


class Bridge(nn.Module, ABC):
    """A torch module without torch parameters, whose outputs another framework computes.

    `mark` is a hash or version that stands for the weights in the classifier's fingerprint; `dtypes` are the weights'
    types. The model stays on the device that its framework chose. Inputs and outputs may be on any torch device.
    """

    def __init__(self, mark: str, dtypes: Iterable[str] = ()) -> None:
        super().__init__()
        _exclude_from_compile()
        self.mark, self.dtypes = mark, frozenset(dtypes)
        self.eval()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _exclude_from_compile()

    def extra_repr(self) -> str:
        """Return `mark` as part of the module's repr, which enters the classifier's fingerprint."""
        return self.mark

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the batch x, on the device of x and without gradients."""

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return the logits and a function, callable repeatedly, from a gradient at the logits to the gradient at x."""
        raise ModelError(
            expected="a model with gradients with respect to its input",
            got=f"{type(self).__name__}, a black box",
            remedy='Use a plan without gradients, e.g. "blackbox".',
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, differentiable if x requires a gradient."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("another framework computes the outputs, so they cannot be captured in a CUDA graph")
        if torch.is_grad_enabled() and x.requires_grad:
            return _Foreign.apply(x, self)
        return self.logits(x.detach())


@cache
def _exclude_from_compile() -> None:
    """Exclude bridges from torch.compile, which cannot compile another framework.

    Only the first call has an effect. It imports the compiler, which takes as long as importing torch.
    """
    uncompiled: Any = torch.compiler.disable(Bridge.forward)
    Bridge.forward = uncompiled  # type: ignore[method-assign]


class _Foreign(torch.autograd.Function):
    """The autograd function that runs the forward and the backward pass of a bridge in its framework."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bridge: Bridge) -> Tensor:
        logits, ctx.pullback = bridge.differentiate(x.detach())
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.pullback(grads[0]), None


class Ordered(nn.Module):
    """A bridge for a model with channels-last images: it moves the channels of its input from axis 1 to the end."""

    def __init__(self, inner: Bridge) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.movedim(1, -1).contiguous())


def classifier(
    bridge: Bridge, *, channels_last: bool = False, device: torch.device | None = None, **options: Any
) -> TorchClassifier:
    """Make a classifier from a bridge; the options are those of `brinell.wrap`."""
    made = wrap(Ordered(bridge) if channels_last else bridge, **options)
    made = replace(made, foreign_dtypes=bridge.dtypes)
    return made if device is None else made.to(device)


def probabilities(values: Any) -> bool:
    """Return whether an array looks like probabilities: rows from 0 to 1 that sum to 1.

    >>> probabilities(np.array([[0.25, 0.75]])), probabilities(np.array([[0.25, 0.5]]))
    (True, False)
    """
    in_range = values.ndim == 2 and values.shape[1] > 1 and values.size and values.min() >= 0
    return bool(in_range and np.abs(values.sum(1) - 1).max() < 1e-5)


def digest(parts: Iterable[tuple[str, Any]], *more: str) -> str:
    """Return the SHA-256 of the named arrays `parts` and of the strings `more`."""
    h = hashlib.sha256("\0".join(more).encode())
    for key, value in parts:
        array = np.ascontiguousarray(value)
        h.update(f"\0{key}{array.dtype}{array.shape}".encode() + array.tobytes())
    return h.hexdigest()


def versioned(what: str, version: str | None) -> str:
    """Return `version`; refuse an empty version, since only a version identifies weights that cannot be read."""
    if not isinstance(version, str) or not version:
        raise InputError(
            expected=f"a version for {what}, because its weights cannot be read",
            got=repr(version),
            remedy='Write version="2026-03", and change it whenever the model changes. Runs store the version.',
        )
    return version


def numbers(x: Tensor) -> Any:
    """Return a batch as a new numpy array in float32."""
    return x.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def as_logits(raw: Any, outputs: str, rows: int, classes: int | None = None) -> Tensor:
    """Return the outputs of a black box as float32 logits: probabilities become their log, labels become ±½.

    >>> as_logits([[0.25, 0.75]], "probabilities", 1)
    tensor([[-1.3863, -0.2877]])
    >>> as_logits([2, 0], "labels", 2, classes=3)
    tensor([[-0.5000, -0.5000,  0.5000],
            [ 0.5000, -0.5000, -0.5000]])
    """
    one_of("outputs", outputs, OUTPUTS)
    try:
        values = np.asarray(raw)
        values = values.astype(np.int64 if outputs == "labels" else np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        kind = "whole numbers" if outputs == "labels" else "numbers"
        raise _wrong(f"{outputs} as an array of {kind}", first_line(error)) from None
    if values.ndim not in ((1,) if outputs == "labels" else (1, 2)) or len(values) != rows:
        shape = f"({rows},)" if outputs == "labels" else f"({rows}, classes)"
        raise _wrong(f"{outputs} of shape {shape} for {rows} inputs", f"shape {values.shape}")
    if outputs == "labels":
        return _from_labels(torch.from_numpy(values), classes)
    if outputs == "probabilities":
        return _from_probabilities(values)
    return torch.from_numpy(values).float()


def _wrong(expected: str, got: str) -> ModelError:
    return ModelError(
        expected=expected, got=got, remedy=f"Return one row per input; set outputs to {' or '.join(OUTPUTS)}."
    )


def _from_labels(values: Tensor, classes: int | None) -> Tensor:
    if classes is None or classes < 2:
        raise InputError(
            expected="a number of classes of at least 2 for a model that returns labels",
            got=f"classes = {classes}",
            remedy="Write e.g. classes=10.",
        )
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < classes):
        raise _wrong(f"labels in 0..{classes - 1}", f"labels from {int(values.min())} to {int(values.max())}")
    # Not 0 and 1, which would look like probabilities. The margins are ±1.
    return nn.functional.one_hot(values, classes).float() - 0.5


def _from_probabilities(values: Any) -> Tensor:
    if values.ndim == 1:  # the probability of the second of two classes
        values = np.stack([1 - values, values], 1)
    if values.size and not (values.min() >= -1e-6 and values.max() <= 1 + 1e-6):
        raise _wrong("probabilities between 0 and 1", f"values from {values.min():.3g} to {values.max():.3g}")
    return torch.from_numpy(np.log(np.maximum(values, FLOOR))).float()
