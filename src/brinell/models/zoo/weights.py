"""Read weight files without running code, and give the tensors the names of the network."""

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from brinell.errors import ModelError, reported_as
from brinell.fetch import is_matlab, matlab_arrays, refuse_page
from brinell.models.checkpoint import load_checkpoint
from brinell.models.zoo.card import Keys
from brinell.untrusted import checked_safetensors, open_plain

# Training scripts store options and numpy numbers beside the tensors of a checkpoint. These types cannot run code.
HARMLESS: list[Any] = [argparse.Namespace, np.dtype]
HARMLESS += [type(np.dtype(kind)) for kind in ("float32", "float64", "int32", "int64", "bool")]
# The function that restores a numpy number, under its names in numpy 1 and 2.
SCALAR = np.float64(0).__reduce__()[0]
HARMLESS += [(SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]

TENSORFLOW = "tensorflow"


def read(path: Path, what: str) -> Any:
    """Read a .safetensors file, a torch checkpoint or a MATLAB file; refuse a file that would run code."""
    expected = f"weights of {what} that can be read without running code"
    remedy = "The file is damaged or holds more than tensors. If you trust it, convert it to .safetensors."
    # A damaged or hostile file can raise any exception.
    with reported_as(ModelError, Exception, expected=expected, remedy=remedy):
        refuse_page(path, f"weights of {what}", ModelError)
        if _is_safetensors(path):
            return load_file(checked_safetensors(path))
        if is_matlab(path):
            return {name: torch.from_numpy(array) for name, array in matlab_arrays(path).items()}
        with warnings.catch_warnings(), torch.serialization.safe_globals(HARMLESS):
            warnings.simplefilter("ignore")  # about unusual versions of the format
            return load_checkpoint(path)


def _is_safetensors(path: Path) -> bool:
    """Return whether the first bytes are a length and a JSON object; file names are not reliable."""
    with open_plain(path) as f:
        start = f.read(9)
    return start[8:] == b"{" and not start.startswith(b"PK")


def tensors(checkpoint: Any, keys: Keys) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by their names in the network; floating-point tensors become float32.

    >>> sorted(tensors({"state_dict": {"module.fc.bias": torch.zeros(2, dtype=torch.float16)}}, Keys()))
    ['fc.bias']
    """
    for entry in (keys.entry, "state_dict"):
        if isinstance(checkpoint, Mapping) and entry and isinstance(checkpoint.get(entry), Mapping):
            checkpoint = checkpoint[entry]
    if not isinstance(checkpoint, Mapping):
        raise ModelError(
            expected="a checkpoint with named tensors",
            got=type(checkpoint).__name__,
            remedy="Check that the file holds the model's state_dict.",
        )
    # Other keys are no names of tensors, and a key of nested tuples can have a text of any length.
    named = [(_stripped(k, keys.strip), v) for k, v in checkpoint.items() if isinstance(v, Tensor) and type(k) is str]
    twice = [name for name, n in Counter(name for name, _ in named).items() if n > 1]
    if twice:
        raise ModelError(
            expected="one tensor per name in the checkpoint",
            got=f"several tensors for {twice[0]}",
            remedy="Report this as a bug: the model's card removes too much of the names.",
        )
    kept = {k: v for k, v in named if not any(re.search(p, k) for p in keys.drop)}
    if keys.rename and keys.rename["when"] in kept:
        kept = {_renamed(k, keys.rename["patterns"]): v for k, v in kept.items()}
    if keys.layout == TENSORFLOW:
        kept = {k: _outputs_first(v) for k, v in kept.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in kept.items()}


def _outputs_first(v: Tensor) -> Tensor:
    """Return weights (height, width, in, out) or (in, out) in torch's order of axes; a bias (1, out) as a vector."""
    if v.ndim == 4:
        return v.permute(3, 2, 0, 1)
    return v.flatten() if v.shape[0] == 1 else v.T


def _stripped(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def _renamed(name: str, patterns: list[list[str]]) -> str:
    for pattern, to in patterns:
        if re.search(pattern, name):
            return re.sub(pattern, to, name)
    return name


def fill(net: nn.Module, named: Mapping[str, Tensor], keys: Keys, what: str) -> None:
    """Load the tensors into the network, which may be on the meta device; refuse names or shapes that do not match."""
    wanted = net.state_dict()
    named = {k: v for k, v in named.items() if k in wanted or not keys.ignore_unknown}
    # Counters of training steps are not needed, and older versions of torch had none.
    missing = [k for k in wanted if k not in named and k not in keys.absent and not k.endswith("num_batches_tracked")]
    extra = [k for k in named if k not in wanted]
    shapes = [k for k, v in named.items() if k in wanted and v.shape != wanted[k].shape]
    if missing or extra or shapes:
        mismatches = {"missing": missing, "unknown": extra, "of another shape": shapes}
        raise ModelError(
            expected=f"the {len(wanted)} tensors of {what}",
            got="; ".join(f"{len(v)} tensors {k} ({', '.join(v[:3])} …)" for k, v in mismatches.items() if v),
            remedy="Pass the file of this model. If it is the right file, report a bug: the card may be outdated.",
        )
    # Copies, so that the network does not keep a memory-mapped file open.
    net.load_state_dict({k: v.clone() for k, v in named.items()}, strict=False, assign=True)
