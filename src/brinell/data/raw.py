"""Files of plain arrays as data sets are published: the pickles of CIFAR, idx files, .npy files."""

import gzip
import math
import pickle
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from brinell.errors import InputError, error_text

GZIP = b"\x1f\x8b"
# Whatever numpy's readers make of bytes that are no array: sizes beyond any memory, headers that do not end.
DAMAGE = (
    *(OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, MemoryError, RuntimeError),
    *(TokenError, zlib.error),
)


def _empty(*_: Any) -> Any:
    """What numpy begins an array with; its size and values come afterwards, and must agree with each other."""
    return np.ndarray((0,), np.uint8)


def _latin(text: str, encoding: str) -> bytes:
    """Bytes as old pickles write them. Other encodings could make much of little, again and again."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin-1")


# What a pickle of CIFAR needs besides plain Python values. Anything else in it could be a call to anything, and these
# are called as arrays are written and in no other way: an array of any size could be asked for otherwise.
ALLOWED = {
    ("numpy", "ndarray"): "the class of arrays",
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("_codecs", "encode"): _latin,
}


class _Arrays(pickle.Unpickler):
    """Reads numpy arrays and plain values, and nothing that runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def unreadable(path: Path, error: Exception) -> InputError:
    """What to say of a file that is not what its name promises."""
    return InputError(
        expected=f"a readable file {path.name} of plain arrays",
        got=error_text(error),
        remedy="Download and unpack the data set again.",
    )


def cifar(path: Path, labels: bytes) -> tuple[Any, Any]:
    """Images (n, 3, 32, 32) of bytes and labels of one batch of CIFAR; nothing in the pickle is run."""
    try:
        with open(path, "rb") as file:
            stored = _Arrays(file, encoding="bytes").load()
        x, y = stored[b"data"], stored[labels]
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
            raise ValueError(f"its data are {getattr(x, 'dtype', type(x).__name__)}, not bytes")
        if not isinstance(y, list | np.ndarray) or len(y) != len(x) or any(int(v) != v for v in y):
            raise ValueError(f"it has {len(x)} images and not as many whole numbers as labels")
        return x.reshape(-1, 3, 32, 32), np.asarray(y, dtype=np.int64)
    # Whatever bytes make of a pickle reader, they are not CIFAR.
    except Exception as error:
        raise unreadable(path, error) from error


def idx(path: Path, rank: int) -> Any:
    """The bytes of an idx file, packed or not: two zeros, 8 for bytes, the rank, big-endian sizes, the data.

    Of a packed file no more is unpacked than its sizes announce.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(4)
            if start != bytes((0, 0, 8, rank)):
                raise ValueError(f"it starts with {start!r}")
            shape = tuple(int(n) for n in np.frombuffer(file.read(4 * rank), ">u4", count=rank))
            values = file.read(math.prod(shape))
            if file.read(1):
                raise ValueError(f"it holds more than the {math.prod(shape)} bytes it announces")
        return np.frombuffer(values, np.uint8).reshape(shape).copy()
    except DAMAGE as error:
        raise unreadable(path, error) from error


def mapped(path: Path) -> Any:
    """The array of a .npy file, read from disk where it is looked at."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except DAMAGE as error:
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
