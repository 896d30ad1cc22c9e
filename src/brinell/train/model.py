"""The model to train: a built-in network or a user's module, with its initial weights, on its device."""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from brinell.errors import InputError, ModelError, reported_as
from brinell.evaluation.coerce import as_classifier
from brinell.models.networks import NETWORKS, Network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops import rng
from brinell.ops.defaults import standard_defaults
from brinell.train.samples import TrainingSamples, as_points

DEMO_CLASSES = 10
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class TrainableModel:
    """A classifier to train, and the built-in network that it was made from (None for a user's own module)."""

    classifier: TorchClassifier
    network: Network | None

    @property
    def module(self) -> nn.Module:
        return self.classifier.module

    def to_json(self, classes: int) -> dict[str, Any]:
        """Return what must be equal to resume: network, classes, normalisation, hash of modules and weight shapes."""
        h = hashlib.sha256(repr(self.module).encode())
        h.update(str([(k, tuple(v.shape)) for k, v in self.module.state_dict().items()]).encode())
        statistics = {"mean": self.classifier.mean, "std": self.classifier.std}
        normalisation = {k: None if v is None else v.flatten().tolist() for k, v in statistics.items()}
        network = None if self.network is None else self.network.to_json()
        return {"network": network, "structure": h.hexdigest(), "classes": classes, **normalisation}


def network_for(name: str, samples: TrainingSamples, classes: int | None = None) -> Network:
    """Return the built-in network `name` for these samples; `classes` is by default the largest label + 1."""
    if samples.x.ndim != 4:
        raise InputError(
            expected=f"images of shape (n, channels, height, width) for {name}",
            got=f"shape {tuple(samples.x.shape)}",
            remedy="Pass your own module as `model` for inputs of another shape.",
        )
    counted = DEMO_CLASSES if name == "demo" else int(samples.y.max()) + 1
    return Network(name, counted if classes is None else classes, samples.x.shape[1])


def as_trainable(model: Any, samples: TrainingSamples, seed: int) -> TrainableModel:
    """Return a trainable model made from a network's name, a Network, a module, a wrapped module, or a function.

    The weights of named networks are drawn with the seed. A user's module is copied and keeps its weights.
    """
    if isinstance(model, str):
        model = network_for(model, samples)
    if isinstance(model, Network):
        with standard_defaults():
            module = model.build()
        initialise(module, seed)
        return TrainableModel(wrap(module, name=model.name), model)
    if isinstance(model, Callable) and not isinstance(model, nn.Module):  # type: ignore[arg-type]
        model = model()
    if isinstance(model, nn.Module):
        model = wrap(model)
    if not isinstance(model, TorchClassifier):
        raise ModelError(
            expected=f"a network ({', '.join(NETWORKS)}), a torch module, or a function that returns a module",
            got=repr(model)[:80],
            remedy="Pass one of these names or a torch.nn.Module.",
        )
    return TrainableModel(replace(model, module=copy.deepcopy(model.module)), None)


def prepare(
    trainable: TrainableModel, samples: TrainingSamples, device: torch.device | str | None
) -> tuple[TrainableModel, int]:
    """Move the model to the device; return it and its number of classes. Raise an error if no weight is trainable."""
    classifier: Any = as_classifier(trainable.classifier, device)
    module = classifier.module
    if not any(w.requires_grad for w in module.parameters()):
        raise ModelError(
            expected="a model with trainable weights",
            got="a model whose weights are all frozen, or one without weights",
            remedy="Call net.requires_grad_(True) first.",
        )
    if samples.x.ndim == 4:
        # Convolutions are faster with channels-last memory on GPUs and most CPUs.
        module.to(memory_format=torch.channels_last)
    return TrainableModel(classifier, trainable.network), _classes(classifier, samples)


def _classes(classifier: TorchClassifier, samples: TrainingSamples) -> int:
    x = as_points(samples.x[:2]).to(classifier.device)
    classifier.module.eval()
    expected = f"a model that accepts a batch of float32 inputs of shape {tuple(x.shape[1:])}"
    remedy = "Pass data of the shape that the model expects: model(x) must work on such a batch."
    with torch.no_grad(), reported_as(ModelError, Exception, expected=expected, remedy=remedy):
        classes = classifier.forward(x).logits.shape[1]
    if int(samples.y.max()) >= classes:
        raise InputError(
            expected=f"labels in 0..{classes - 1}, because the model has {classes} classes",
            got=f"label {int(samples.y.max())}",
            remedy="Pass a model with more classes, or correct the labels.",
        )
    return classes


def uniform_weights(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return uniform numbers in [−1, 1) of this shape, determined by the seed and the name of the parameter."""
    key = rng.fold(rng.keys(seed, torch.zeros(1, dtype=torch.long, device="cpu")), rng.digest(f"weights {name}"))
    return 2 * rng.uniform(key, shape)[0] - 1


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Draw the weights of linear and convolutional layers from torch's distribution, and reset normalisation layers.

    Method: weights are uniform within ±1 / √fan-in, biases are zero. The scale matters: before a normalisation layer,
    the effective learning rate is lr / ‖w‖², and published learning rates assume torch's scale. Other parameters do not
    change.

    >>> net = nn.Linear(3, 2)
    >>> initialise(net, seed=0)
    >>> net.bias.tolist()
    [0.0, 0.0]
    """
    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            fan = math.prod(layer.weight.shape[1:])
            layer.weight.copy_(uniform_weights(seed, f"{name}.weight", tuple(layer.weight.shape)) / math.sqrt(fan))
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, NORMS):
            layer.reset_parameters()
