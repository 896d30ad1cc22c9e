"""A Problem from a name or a file."""

import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from brinell.core.problem import Problem
from brinell.data.demo import demo
from brinell.errors import InputError

NAMES = ("demo",)


def load(source: str | os.PathLike[str], n: int | None = None) -> Problem:
    """The named data set, or a .npz or .safetensors file with `x`, `y` and optionally `ids`; `n` takes the first n.

    >>> len(load("demo", n=100))
    100
    """
    if str(source) == "demo":
        x, y = demo()
        problem = Problem(x, y, name="demo")
    else:
        problem = _from_file(Path(source))
    if n is not None and n < 1:
        raise InputError(expected="n of at least 1", got=f"{n}", remedy="Leave it out for all samples.")
    return problem if n is None else problem[:n]


def _arrays(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    # Opened here: numpy leaves a file it cannot read open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def _from_file(path: Path) -> Problem:
    if not path.exists():
        raise InputError(
            expected=f"a data set name ({', '.join(NAMES)}) or a file",
            got=f"{path}, which does not exist",
            remedy="Check the path.",
        )
    if path.suffix not in (".npz", ".safetensors"):
        raise InputError(
            expected="a .npz or .safetensors file",
            got=path.name,
            remedy="Save x, y and optionally ids with numpy.savez.",
        )
    try:
        stored = _arrays(path)
    except (OSError, ValueError, BadZipFile, SafetensorError) as error:
        raise InputError(
            expected=f"a readable file {path.name} of plain arrays",
            got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            remedy="Save it again with numpy.savez(path, x=x, y=y).",
        ) from error
    missing = [k for k in ("x", "y") if k not in stored]
    if missing:
        raise InputError(
            expected="arrays x (inputs) and y (labels)",
            got=f"{path.name} with {', '.join(sorted(stored)) or 'nothing'}",
            remedy="Save them as numpy.savez(path, x=x, y=y).",
        )
    return Problem(stored["x"], stored["y"], stored.get("ids"), name=path.name)
