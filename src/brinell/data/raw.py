"""Files of plain arrays as data sets are published: the pickles of CIFAR, idx files, .npy files."""

import gzip
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from brinell.errors import InputError

# What a pickle of CIFAR needs besides plain Python values. Anything else in it could be a call to anything.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
GZIP = b"\x1f\x8b"


class _Arrays(pickle.Unpickler):
    """Reads numpy arrays and plain values, and nothing that runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def unreadable(path: Path, error: Exception) -> InputError:
    """What to say of a file that is not what its name promises."""
    return InputError(
        expected=f"a readable file {path.name} of plain arrays",
        got=f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}",
        remedy="Download and unpack the data set again.",
    )


def cifar(path: Path, labels: bytes) -> tuple[Any, Any]:
    """Images (n, 3, 32, 32) of bytes and labels of one batch of CIFAR; nothing in the pickle is run."""
    try:
        with open(path, "rb") as file:
            stored = _Arrays(file, encoding="bytes").load()
        x = np.asarray(stored[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return x, np.asarray(stored[labels], dtype=np.int64)
    # Whatever bytes make of a pickle reader, they are not CIFAR.
    except Exception as error:
        raise unreadable(path, error) from error


def idx(path: Path, rank: int) -> Any:
    """The bytes of an idx file, packed or not: two zeros, 8 for bytes, the rank, big-endian sizes, the data."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(GZIP) else raw
        if raw[:4] != bytes((0, 0, 8, rank)):
            raise ValueError(f"it starts with {raw[:4]!r}")
        shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(int(n) for n in shape)).copy()
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def mapped(path: Path) -> Any:
    """The array of a .npy file, read from disk where it is looked at."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, TypeError, SyntaxError) as error:
        raise unreadable(path, error) from error


def tiles(path: Path) -> Any:
    """Images (n, 32, 32, 3) of bytes of a .npy file, as (n, 3, 32, 32), read where they are looked at."""
    x = mapped(path)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (32, 32, 3):
        raise unreadable(path, ValueError(f"it holds {x.dtype} of shape {x.shape}, not bytes (n, 32, 32, 3)"))
    return x.transpose(0, 3, 1, 2)


def labels(path: Path, n: int) -> Any:
    """The n labels of a .npy file."""
    y = mapped(path)
    if y.shape != (n,) or y.dtype.kind not in "iu":
        raise unreadable(path, ValueError(f"it holds {y.dtype} of shape {y.shape}, not {n} labels"))
    return np.array(y, dtype=np.int64)
