"""The arrays of a .npz or .safetensors file."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from brinell.data.raw import DAMAGE
from brinell.errors import InputError, error_text

ENDS = (".npz", ".safetensors")


def _arrays(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    # Opened here: numpy leaves a file it cannot read open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: _native(archive[name]) for name in archive}


def _native(x: Any) -> Any:
    """In this machine's order of bytes, which is the only one tensors know."""
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def read_file(path: Path) -> dict[str, Any]:
    """The arrays of the file, x and y among them."""
    if not path.exists():
        raise InputError(
            expected="a file or a folder",
            got=f"{path}, which does not exist",
            remedy="Check the path.",
        )
    if path.suffix not in ENDS:
        raise InputError(
            expected="a .npz or .safetensors file",
            got=path.name,
            remedy="Save x, y and optionally ids with numpy.savez.",
        )
    try:
        stored = _arrays(path)
    except (*DAMAGE, KeyError, BadZipFile, SafetensorError) as error:
        raise InputError(
            expected=f"a readable file {path.name} of plain arrays",
            got=error_text(error),
            remedy="Save it again with numpy.savez(path, x=x, y=y).",
        ) from error
    missing = [k for k in ("x", "y") if k not in stored]
    if missing:
        raise InputError(
            expected="arrays x (inputs) and y (labels)",
            got=f"{path.name} with {', '.join(sorted(stored)) or 'nothing'}",
            remedy="Save them as numpy.savez(path, x=x, y=y).",
        )
    return stored
