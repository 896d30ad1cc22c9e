"""The output folder of `fit`: config.json, checkpoint.pt, curve.csv, model.safetensors, last.safetensors.

Every file is complete or absent. A resumed training starts from the checkpoint alone. The other files are written after
the checkpoint and can be recreated from it.
"""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from brinell.errors import ModelError, RunError, one_of, reported_as
from brinell.models.checkpoint import load_checkpoint
from brinell.models.networks import Network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.results import differences
from brinell.results.format.lock import LOCK, locked_folder
from brinell.storage import is_temporary, write_atomic
from brinell.train.curve import Epoch, as_csv
from brinell.untrusted import checked_safetensors, read_json

CONFIG, CHECKPOINT, CURVE, BEST, LAST = (
    "config.json",
    "checkpoint.pt",
    "curve.csv",
    "model.safetensors",
    "last.safetensors",
)
FILES = {"best": BEST, "last": LAST}
FORMAT = 1
# Names are stored, but a training with another name may be resumed.
NOT_COMPARED = ("data.name", "validation.name", "threat.eps_text")
SHOWN = 60

Weights = dict[str, Tensor]


def weights_of(module: nn.Module) -> Weights:
    """Return the state dict of a module as contiguous copies on the CPU."""
    state = module.state_dict()
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in state.items() if isinstance(v, Tensor)}


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of config.json in a training's output folder; raise a RunError for any other folder."""
    try:
        config = read_json(path / CONFIG)
    except (OSError, ValueError) as error:
        raise RunError(
            expected=f"the output folder of `brinell train`, with a readable {CONFIG}",
            got=f"{path} ({type(error).__name__})",
            remedy="Pass the folder given as --out (`out`) to the training.",
        ) from error
    if not isinstance(config, dict) or config.get("brinell_training") != FORMAT:
        raise RunError(
            expected=f"the output folder of `brinell train` in format {FORMAT} at {path}",
            got=f"format {config.get('brinell_training') if isinstance(config, dict) else config}",
            remedy="Pass another folder, or update Brinell.",
        )
    return config


def read_weights(path: Path) -> Weights:
    """Return the tensors of a safetensors file by name; raise a RunError if the file is missing or damaged."""
    remedy = "Continue the training with --resume: it writes weights at the end of every epoch."
    with reported_as(RunError, Exception, expected=f"readable weights in {path}", remedy=remedy):
        return load_file(checked_safetensors(path))


class Folder:
    """The output folder of a training, open for writing and locked until the `with` block ends."""

    def __init__(self, path: Path, identity: Mapping[str, Any], facts: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        used = (path / CONFIG).exists()
        self._check(identity, used, resume)
        self._lock = locked_folder(path)
        for file in path.iterdir():
            if is_temporary(file):
                file.unlink()
        if not used:
            config = {"brinell_training": FORMAT, "identity": dict(identity), **facts}
            write_atomic(path / CONFIG, (json.dumps(config, indent=2) + "\n").encode())

    def _check(self, identity: Mapping[str, Any], used: bool, resume: bool) -> None:
        path, new = self.path, f"a new or empty folder at {self.path}"
        if not used:
            others = [f.name for f in path.iterdir() if f.name != LOCK and not is_temporary(f)] if path.is_dir() else []
            if others or (path.exists() and not path.is_dir()):
                got = f"a folder with other files ({', '.join(sorted(others)[:3])})" if others else "a file"
                raise RunError(expected=new, got=got, remedy="Pass another folder as --out (`out`).")
            return
        if not resume:
            remedy = "Continue the training with --resume (resume=True), or pass another folder as --out (`out`)."
            raise RunError(expected=new, got="the folder of an earlier training", remedy=remedy)
        changed = differences(read_config(path)["identity"], identity)
        changed = {k: v for k, v in changed.items() if k not in NOT_COMPARED}
        if changed:
            raise RunError(
                expected=f"the settings of the training in {path}",
                got="; ".join(f"{k} {_short(new)} instead of {_short(old)}" for k, (old, new) in changed.items()),
                remedy="Pass the same settings, or another folder as --out (`out`).",
            )

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if the folder has no checkpoint yet."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return None
        # A damaged file can raise almost any exception.
        remedy = "Restore it from a copy, or train again in a new folder."
        with reported_as(RunError, Exception, expected=f"a readable checkpoint {file}", remedy=remedy):
            stored: dict[str, Any] = load_checkpoint(file)
        return stored

    def store(self, checkpoint: Mapping[str, Any]) -> None:
        data = io.BytesIO()
        torch.save(dict(checkpoint), data)
        write_atomic(self.path / CHECKPOINT, data.getvalue())

    def publish(self, best: Weights, last: Weights, curve: list[Epoch]) -> None:
        """Write the weights of the best and the last epoch, and the training curve as CSV."""
        for name, weights in ((BEST, best), (LAST, last)):
            write_atomic(self.path / name, save(weights))
        write_atomic(self.path / CURVE, as_csv(curve))

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def is_training(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is an output folder of `fit`."""
    return (Path(path) / CONFIG).is_file()


def load(
    folder: str | os.PathLike[str], model: Any = None, *, weights: str = "best", device: torch.device | None = None
) -> TorchClassifier:
    """Load a trained classifier from the output folder of `fit`, in evaluation mode.

    `weights` selects the averaged weights of the "best" or the "last" epoch. If your own module was trained, pass it as
    `model`, since the folder contains no code; the weights of the module are replaced.

    >>> load("nowhere")
    Traceback (most recent call last):
    brinell.errors.RunError: expected the output folder of `brinell train`, ...
    """
    path = Path(folder)
    stored = _stored_model(path)
    tensors = read_weights(path / FILES[one_of("weights", weights, FILES)])
    if model is None and stored["network"] is None:
        raise ModelError(
            expected="the module that was trained, because it is not one of Brinell's networks",
            got="only the folder",
            remedy=f"Call brinell.train.load({str(folder)!r}, net), e.g. in a Python function that --model names.",
        )
    made = _network(path, stored["network"], tensors) if model is None else model
    # A user's module was trained with the normalisation of its classifier. A named network has it inside.
    mean, std = (stored.get("mean"), stored.get("std")) if model is not None else (None, None)
    classifier = wrap(made, mean, std, name=path.name) if isinstance(made, nn.Module) else made
    trained = f"the module that was trained in {path}"
    with reported_as(ModelError, RuntimeError, AttributeError, expected=trained, remedy="Pass the same module."):
        classifier.module.load_state_dict(tensors)
    classifier.module.eval().requires_grad_(False)
    return classifier if device is None else classifier.to(device)


def _stored_model(path: Path) -> dict[str, Any]:
    """Return what config.json says about the model."""
    identity = read_config(path).get("identity")
    stored = identity.get("model") if isinstance(identity, dict) else None
    if not isinstance(stored, dict) or "network" not in stored:
        got, remedy = "a config.json without it", "Restore config.json from a copy, or train again."
        raise RunError(expected=f"a config.json with the model that was trained in {path}", got=got, remedy=remedy)
    return stored


def _network(path: Path, stored: Any, tensors: Weights) -> nn.Module:
    """Build the network of a training; refuse one that the weights do not fit, before it takes memory."""
    defects = (TypeError, ValueError, AttributeError, OverflowError, RuntimeError, MemoryError)
    expected, remedy = f"a network of Brinell in {path / CONFIG}", "Restore config.json from a copy, or train again."
    with reported_as(RunError, *defects, expected=expected, remedy=remedy):
        network = Network.from_json(stored)
        with torch.device("meta"):
            planned = {name: tuple(value.shape) for name, value in network.build().state_dict().items()}
        other = [name for name, shape in planned.items() if name not in tensors or tuple(tensors[name].shape) != shape]
        if other:
            raise ValueError(f"a network with another {other[0]} than {BEST} has")
        return network.build()
