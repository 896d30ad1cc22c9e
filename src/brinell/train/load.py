"""The model of a training."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brinell.errors import ModelError, first_line, one_of
from brinell.models.networks import Network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.train.folder import BEST, CONFIG, LAST, read_config, read_weights

FILES = {"best": BEST, "last": LAST}


def is_training(path: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a training."""
    return (Path(path) / CONFIG).is_file()


def load(
    folder: str | os.PathLike[str], model: Any = None, *, weights: str = "best", device: torch.device | None = None
) -> TorchClassifier:
    """The classifier of a training, averaged weights in evaluation mode: of its best epoch, or of its "last".

    A training of a user's own module needs that module again as `model` (its weights are replaced): no code is ever
    taken from a folder.

    >>> load("nowhere")
    Traceback (most recent call last):
    brinell.errors.RunError: expected the folder of a training, ... Check the path.
    """
    path = Path(folder)
    stored = read_config(path)["identity"]["model"]
    tensors = read_weights(path / FILES[one_of("weights", weights, FILES)])
    if model is None and stored["network"] is None:
        raise ModelError(
            expected="the module that was trained, since it is not one of Brinell's networks",
            got="the folder alone",
            remedy=f"Call brinell.train.load({str(folder)!r}, net), e.g. in a function of your own for --model.",
        )
    made = Network.from_json(stored["network"]).build() if model is None else model
    # The normalisation that was applied around a module of the user's own is part of what was trained.
    around = (stored["mean"], stored["std"]) if model is not None else (None, None)
    classifier = wrap(made, *around, name=path.name) if isinstance(made, nn.Module) else made
    try:
        classifier.module.load_state_dict(tensors)
    except (RuntimeError, AttributeError) as error:
        raise ModelError(
            expected=f"the module that was trained in {path}",
            got=first_line(error),
            remedy="Build it as it was.",
        ) from error
    classifier.module.eval().requires_grad_(False)
    return classifier if device is None else classifier.to(device)
