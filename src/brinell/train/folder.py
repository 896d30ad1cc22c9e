"""The folder of a training: config.json, checkpoint.pt, curve.csv, model.safetensors, last.safetensors.

Every file is whole or absent. The checkpoint alone decides where a training goes on; the others are written after it
and can be made from it again.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from brinell.errors import RunError, error_text, first_line
from brinell.results import differences
from brinell.results.format.files import is_temporary, write_atomic
from brinell.results.format.lock import LOCK, Lock
from brinell.train.curve import Epoch, as_csv

CONFIG, CHECKPOINT, CURVE, BEST, LAST = (
    "config.json",
    "checkpoint.pt",
    "curve.csv",
    "model.safetensors",
    "last.safetensors",
)
FORMAT = 1
# How things are called does not make two trainings different.
FOR_PEOPLE = ("data.name", "validation.name", "threat.eps_text")
SHOWN = 60

Weights = dict[str, Tensor]


def weights_of(module: nn.Module) -> Weights:
    """The state of a module on the host, each tensor plain and its own."""
    state = module.state_dict()
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in state.items() if isinstance(v, Tensor)}


def read_config(path: Path) -> dict[str, Any]:
    """The config in the folder, or an error."""
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(
            expected=f"the folder of a training, with a readable {CONFIG}",
            got=f"{path} ({type(error).__name__})",
            remedy="Check the path.",
        ) from error
    if not isinstance(config, dict) or config.get("brinell_training") != FORMAT:
        raise RunError(
            expected=f"a training of format {FORMAT} in {path}",
            got=f"format {config.get('brinell_training') if isinstance(config, dict) else config}",
            remedy="Check the path, or update Brinell.",
        )
    return config


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file, or an error."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(
            expected=f"readable weights in {path}",
            got=error_text(error),
            remedy="A training writes them at the end of its first epoch; go on with --resume.",
        ) from error


class Folder:
    """The only writer of a training's folder, until closed."""

    def __init__(self, path: Path, identity: Mapping[str, Any], facts: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        used = (path / CONFIG).exists()
        self._refuse(identity, used, resume)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(path)
        except OSError as error:
            raise RunError(
                expected=f"a folder that can be written at {path}",
                got=f"{type(error).__name__}: {error.strerror}",
                remedy="Choose another folder.",
            ) from error
        for file in path.iterdir():
            if is_temporary(file):
                file.unlink()
        if not used:
            config = {"brinell_training": FORMAT, "identity": dict(identity), **facts}
            write_atomic(path / CONFIG, (json.dumps(config, indent=2) + "\n").encode())

    def _refuse(self, identity: Mapping[str, Any], used: bool, resume: bool) -> None:
        path = self.path
        if not used:
            others = [f.name for f in path.iterdir() if f.name != LOCK and not is_temporary(f)] if path.is_dir() else []
            if others or (path.exists() and not path.is_dir()):
                raise RunError(
                    expected=f"a new or empty folder at {path}",
                    got=f"one with other files ({', '.join(sorted(others)[:3])})" if others else "a file",
                    remedy="Choose another folder.",
                )
            return
        if not resume:
            raise RunError(
                expected=f"a new or empty folder at {path}",
                got="a training",
                remedy="Go on with it by --resume (resume=True), or choose another folder.",
            )
        changed = differences(read_config(path)["identity"], identity)
        changed = {k: v for k, v in changed.items() if k not in FOR_PEOPLE}
        if changed:
            told = "; ".join(f"{k} {_short(new)} instead of {_short(old)}" for k, (old, new) in changed.items())
            raise RunError(
                expected=f"the settings of the training in {path}",
                got=told,
                remedy="Give the same settings, or choose another folder.",
            )

    def load(self) -> dict[str, Any] | None:
        """The checkpoint, or None where there is none yet."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return None
        try:
            stored: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        # Torn bytes make the reader raise almost anything.
        except Exception as error:
            raise RunError(
                expected=f"a readable checkpoint {file}",
                got=f"{type(error).__name__}: {first_line(error)[:80]}",
                remedy="Restore it from a copy, or train again in a new folder.",
            ) from error
        return stored

    def store(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        data = io.BytesIO()
        torch.save(dict(checkpoint), data)
        write_atomic(self.path / CHECKPOINT, data.getvalue())

    def publish(self, best: Weights, last: Weights, curve: list[Epoch]) -> None:
        """Write what a reader of the folder needs."""
        for name, weights in ((BEST, best), (LAST, last)):
            write_atomic(self.path / name, save(weights))
        write_atomic(self.path / CURVE, as_csv(curve))

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: "type[BaseException] | BaseException | TracebackType | None") -> None:
        self._lock.release()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
