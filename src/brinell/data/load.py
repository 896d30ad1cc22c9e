"""A Problem from a name, a file or a folder."""

import os
from pathlib import Path

import numpy as np

from brinell.core.problem import Problem
from brinell.data.demo import demo
from brinell.data.folders import read
from brinell.errors import InputError


def load(source: str | os.PathLike[str], n: int | None = None) -> Problem:
    """The named data set, or a .npz or .safetensors file with `x`, `y` and optionally `ids`; `n` takes the first n.

    Of a folder as CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST are published, the test split.

    >>> len(load("demo", n=100))
    100
    """
    if str(source) == "demo":
        x, y = demo()
        problem = Problem(x, y, name="demo")
    else:
        path = Path(source)
        stored = read(path, "test")
        # Only a folder says for sure that its bytes are images of 256 levels.
        x = np.float32(stored["x"]) / np.float32(255) if path.is_dir() else stored["x"]
        problem = Problem(x, stored["y"], stored.get("ids"), name=path.name)
    if n is not None and n < 1:
        raise InputError(expected="n of at least 1", got=f"{n}", remedy="Leave it out for all samples.")
    return problem if n is None else problem[:n]
