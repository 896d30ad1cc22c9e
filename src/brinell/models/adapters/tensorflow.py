"""Models of TensorFlow, and of Keras on its TensorFlow backend."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from brinell.errors import ModelError
from brinell.models.adapters.bridge import Bridge, Pull, classifier, digest, framework, numbers, versioned
from brinell.models.wrap import TorchClassifier


def _tensorflow() -> Any:
    return framework("tensorflow", "tensorflow", "models in TensorFlow")


class TensorFlowBridge(Bridge):
    """A callable of TensorFlow tensors, called in inference mode."""

    def __init__(self, function: Callable[..., Any], mark: str, stored: set[str]) -> None:
        super().__init__(mark, stored)
        self.function = function

    def answer(self, x: Tensor) -> Tensor:
        """One call."""
        return _back(self.function(_tensorflow().constant(numbers(x))), x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pull]:
        """The same, watched by a tape that may be read more than once."""
        tf = _tensorflow()
        point = tf.constant(numbers(x))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(point)
            y = self.function(point)

        def pull(g: Tensor) -> Tensor:
            towards = tf.cast(tf.reshape(tf.constant(numbers(g)), tf.shape(y)), y.dtype)
            grad = tape.gradient(y, point, towards, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return _back(grad, x.device)

        return _back(y, x.device), pull


def _back(value: Any, device: torch.device) -> Tensor:
    # A copy: what TensorFlow hands out may not be written to.
    return torch.tensor(value.numpy()).float().to(device)


class _Inference:
    """A Keras model called in inference mode."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: Any) -> Any:
        return self.model(x, training=False)


def _weights(model: Any) -> "list[tuple[str, Any]]":
    """Names and arrays of what a Keras model or a tf.Module has stored; empty for a function."""
    found = getattr(model, "weights", None) or getattr(model, "variables", None) or ()
    return [(f"{i} {getattr(v, 'path', getattr(v, 'name', ''))}", v.numpy()) for i, v in enumerate(found)]


def from_tensorflow(
    model: Any,
    *,
    name: str | None = None,
    version: str | None = None,
    channels_last: bool = True,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    allow: Iterable[str] = (),
    detector: Any = None,
) -> TorchClassifier:
    """A classifier from a Keras model, a tf.Module, or a function of a TensorFlow tensor that gives a batch's logits.

    Method: gradients come from a tape, so every attack works; arrays are copied at the border. Keras models are called
    with training=False and must run on the TensorFlow backend. A last softmax must go (`activation=None`): an
    evaluation refuses probabilities. The fingerprint hashes the weights, their order and `version`; a function without
    weights needs a version. Images are given as (n, h, w, c) unless `channels_last=False`. The rest is as in `wrap`.
    """
    tf = _tensorflow()
    keras = isinstance(model, tf.keras.Model)
    if keras and tf.keras.backend.backend() != "tensorflow":
        raise ModelError(
            expected="Keras on its TensorFlow backend",
            got=f"the backend {tf.keras.backend.backend()}",
            remedy="Set KERAS_BACKEND=tensorflow; on torch a model is a module for brinell.wrap, on JAX use from_jax.",
        )
    weights = _weights(model)
    label = getattr(model, "__name__", type(model).__name__)
    told = versioned("a TensorFlow function without weights", version) if not weights else version or ""
    # Names such as dense_3 count up within a process; the order says enough.
    mark = digest(((str(i), v) for i, (_, v) in enumerate(weights)), "tensorflow", type(model).__name__, told)
    bridge = TensorFlowBridge(_Inference(model) if keras else model, mark, {str(v.dtype) for _, v in weights})
    return classifier(
        bridge,
        name=name if name is not None else str(getattr(model, "name", label)),
        differentiable=True,
        channels_last=channels_last,
        mean=mean,
        std=std,
        allow=allow,
        detector=detector,
    )
