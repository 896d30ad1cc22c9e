"""What is trained: a network by name or a user's module, on its device, with its initial weights."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from brinell.errors import BrinellError, InputError, ModelError, error_text
from brinell.evaluation.coerce import as_classifier
from brinell.models.networks import NETWORKS, Network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.train.initialise import initialise
from brinell.train.samples import Samples, as_points

DEMO_CLASSES = 10


@dataclass(frozen=True)
class Trainee:
    """A classifier to be trained, and the network it was built from (None: a user's own module)."""

    classifier: TorchClassifier
    network: Network | None

    @property
    def module(self) -> nn.Module:
        """The weights."""
        return self.classifier.module

    def to_json(self, classes: int) -> dict[str, Any]:
        """What must be the same to go on: names and shapes of the weights, and the structure as printed."""
        h = hashlib.sha256(repr(self.module).encode())
        h.update(str([(k, tuple(v.shape)) for k, v in self.module.state_dict().items()]).encode())
        normalisation = {k: None if v is None else v.flatten().tolist() for k, v in self._statistics().items()}
        network = None if self.network is None else self.network.to_json()
        return {"network": network, "structure": h.hexdigest(), "classes": classes, **normalisation}

    def _statistics(self) -> dict[str, Any]:
        return {"mean": self.classifier.mean, "std": self.classifier.std}


def named(name: str, samples: Samples, classes: int | None = None) -> Network:
    """The network of that name for these samples: as many classes as labels, as many channels as images have."""
    if samples.x.ndim != 4:
        raise InputError(
            expected=f"images of shape (n, channels, height, width) for {name}",
            got=f"shape {tuple(samples.x.shape)}",
            remedy="Give a module of your own for other inputs.",
        )
    found = DEMO_CLASSES if name == "demo" else int(samples.y.max()) + 1
    return Network(name, found if classes is None else classes, samples.x.shape[1])


def as_trainee(model: Any, samples: Samples, seed: int) -> Trainee:
    """From a network's name, a Network, a module, a wrapped module, or a function that makes one.

    Named networks start from weights drawn by the seed; what a user brings starts from its own, and is copied.
    """
    if isinstance(model, str):
        model = named(model, samples)
    if isinstance(model, Network):
        module = model.build()
        initialise(module, seed)
        return Trainee(wrap(module, name=model.name), model)
    if isinstance(model, Callable) and not isinstance(model, nn.Module):  # type: ignore[arg-type]
        model = model()
    if isinstance(model, nn.Module):
        model = wrap(model)
    if not isinstance(model, TorchClassifier):
        raise ModelError(
            expected=f"a network ({', '.join(NETWORKS)}), a torch module or a function that makes one",
            got=repr(model)[:80],
            remedy="Pass the untrained torch.nn.Module itself.",
        )
    return Trainee(replace(model, module=copy.deepcopy(model.module)), None)


def ready(trainee: Trainee, samples: Samples, device: torch.device | str | None) -> tuple[Trainee, int]:
    """The trainee on its device, and its number of classes; refuses a model that cannot answer or be trained."""
    classifier: Any = as_classifier(trainee.classifier, device)
    module = classifier.module
    if not any(w.requires_grad for w in module.parameters()):
        raise ModelError(
            expected="a model with trainable weights", got="none", remedy="Call net.requires_grad_(True) first."
        )
    if samples.x.ndim == 4:
        # Convolutions are faster on a GPU, and on most processors, when the channels of a pixel lie side by side.
        module.to(memory_format=torch.channels_last)
    return Trainee(classifier, trainee.network), _classes(classifier, samples)


def _classes(classifier: TorchClassifier, samples: Samples) -> int:
    x = as_points(samples.x[:2]).to(classifier.device)
    classifier.module.eval()
    try:
        with torch.no_grad():
            classes = classifier.forward(x).logits.shape[1]
    except BrinellError:
        raise
    except Exception as error:
        raise ModelError(
            expected=f"a model that answers a batch of float32 inputs of shape {tuple(x.shape[1:])}",
            got=error_text(error),
            remedy="Check the shape of the inputs: model(x) must work on such a batch.",
        ) from error
    if int(samples.y.max()) >= classes:
        raise InputError(
            expected=f"labels in 0..{classes - 1}, since the model has {classes} classes",
            got=f"label {int(samples.y.max())}",
            remedy="Check that the labels belong to this model.",
        )
    return classes
