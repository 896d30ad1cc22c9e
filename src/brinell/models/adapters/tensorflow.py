"""Adapter for TensorFlow models, and for Keras on its TensorFlow backend."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from brinell.errors import ModelError
from brinell.models.adapters.bridge import Bridge, Pullback, classifier, digest, framework, numbers, versioned
from brinell.models.wrap import TorchClassifier


def _tensorflow() -> Any:
    return framework("tensorflow", "tensorflow", "models in TensorFlow")


class TensorFlowBridge(Bridge):
    """A bridge to a function of TensorFlow tensors, which is called in inference mode."""

    def __init__(self, function: Callable[..., Any], mark: str, dtypes: set[str]) -> None:
        super().__init__(mark, dtypes)
        self.function = function

    def logits(self, x: Tensor) -> Tensor:
        return _back(self.function(_tensorflow().constant(numbers(x))), x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        tf = _tensorflow()
        point = tf.constant(numbers(x))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(point)
            y = self.function(point)

        def pullback(g: Tensor) -> Tensor:
            towards = tf.cast(tf.reshape(tf.constant(numbers(g)), tf.shape(y)), y.dtype)
            grad = tape.gradient(y, point, towards, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return _back(grad, x.device)

        return _back(y, x.device), pullback


def _back(value: Any, device: torch.device) -> Tensor:
    # A copy, because TensorFlow's arrays are read-only.
    return torch.tensor(value.numpy(), device="cpu").float().to(device)


def _weights(model: Any) -> "list[tuple[str, Any]]":
    """Return the names and arrays of the weights of a Keras model or tf.Module; empty for a function."""
    variables = getattr(model, "weights", None) or getattr(model, "variables", None) or ()
    return [(f"{i} {getattr(v, 'path', getattr(v, 'name', ''))}", v.numpy()) for i, v in enumerate(variables)]


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
    """Make a classifier from a Keras model, a tf.Module, or a TensorFlow function that returns the logits of a batch.

    Method: a gradient tape computes the gradients, so every attack works. Arrays are copied between the frameworks.
    Keras models are called with training=False and must use the TensorFlow backend. Remove a final softmax
    (`activation=None`): an evaluation refuses probabilities. The fingerprint hashes the weights, their order and
    `version`. A function without weights needs a version. Images have shape (n, h, w, c) unless
    `channels_last=False`. The other options are those of `wrap`.
    """
    tf = _tensorflow()
    keras = isinstance(model, tf.keras.Model)
    if keras and tf.keras.backend.backend() != "tensorflow":
        raise ModelError(
            expected="Keras on its TensorFlow backend",
            got=f"the backend {tf.keras.backend.backend()}",
            remedy="Set the environment variable KERAS_BACKEND=tensorflow, or call brinell.wrap for torch models and "
            "from_jax for JAX models.",
        )
    weights = _weights(model)
    label = getattr(model, "__name__", type(model).__name__)
    version = version or "" if weights else versioned("a TensorFlow function without weights", version)
    # Names such as dense_3 depend on how many layers the process has made, so only the order counts.
    mark = digest(((str(i), v) for i, (_, v) in enumerate(weights)), "tensorflow", type(model).__name__, version)
    bridge = TensorFlowBridge(
        partial(model, training=False) if keras else model, mark, {str(v.dtype) for _, v in weights}
    )
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
