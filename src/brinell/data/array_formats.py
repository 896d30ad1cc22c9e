"""Read the file formats of published data sets: CIFAR pickles, idx files, .npy files. Files can run no code."""

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
# Errors that numpy's readers raise for damaged files: impossible sizes, headers without an end.
DAMAGE = (
    *(OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, MemoryError, RuntimeError),
    *(TokenError, zlib.error),
)


def _empty(*_: Any) -> Any:
    """Return an empty array, as numpy's `_reconstruct` does; the pickle then sets the shape and the values."""
    return np.ndarray((0,), np.uint8)


def _latin(text: str, encoding: str) -> bytes:
    """Return the bytes that an old pickle stores as Latin-1 text; raise an error for another encoding."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the pickle uses the encoding {encoding!r}, not latin1")
    return text.encode("latin-1")


# The only functions that a CIFAR pickle needs. Any other one could run code. These accept only the arguments that
# numpy writes, because other arguments could allocate arrays of any size.
ALLOWED = {
    ("numpy", "ndarray"): "the class of arrays",
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("_codecs", "encode"): _latin,
}


class _Arrays(pickle.Unpickler):
    """An unpickler that accepts only numpy arrays and plain values, and runs no other code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the pickle calls {module}.{name}, which is not allowed")
        return ALLOWED[module, name]


def unreadable(path: Path, error: Exception) -> InputError:
    """Return the error for a file that does not have the expected format."""
    return InputError(
        expected=f"a readable file {path.name} of plain arrays",
        got=error_text(error),
        remedy="Download and unpack the data set again.",
    )


def cifar(path: Path, labels: bytes) -> tuple[Any, Any]:
    """Return byte images (n, 3, 32, 32) and labels (n,) of a CIFAR pickle; `labels` is the key of the labels."""
    try:
        with open(path, "rb") as file:
            stored = _Arrays(file, encoding="bytes").load()
        x, y = stored[b"data"], stored[labels]
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
            raise ValueError(f"the data are {getattr(x, 'dtype', type(x).__name__)}, not bytes")
        if not isinstance(y, list | np.ndarray) or len(y) != len(x) or any(int(v) != v for v in y):
            raise ValueError(f"the file has {len(x)} images but not as many integer labels")
        return x.reshape(-1, 3, 32, 32), np.asarray(y, dtype=np.int64)
    # A damaged or hostile pickle can raise any exception.
    except Exception as error:
        raise unreadable(path, error) from error


def idx(path: Path, rank: int) -> Any:
    """Return the byte array with `rank` axes of an idx file, compressed or not.

    Format: two zeros, 8 for bytes, the rank, big-endian sizes, the data. At most the declared bytes are decompressed.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(4)
            if start != bytes((0, 0, 8, rank)):
                raise ValueError(f"the file starts with {start!r}, not {bytes((0, 0, 8, rank))!r}")
            shape = tuple(int(n) for n in np.frombuffer(file.read(4 * rank), ">u4", count=rank))
            values = file.read(math.prod(shape))
            if file.read(1):
                raise ValueError(f"the file holds more than the {math.prod(shape)} bytes that it declares")
        return np.frombuffer(values, np.uint8).reshape(shape).copy()
    except DAMAGE as error:
        raise unreadable(path, error) from error


def mapped(path: Path) -> Any:
    """Return the memory-mapped array of a .npy file."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except DAMAGE as error:
        raise unreadable(path, error) from error


def images(path: Path) -> Any:
    """Return the byte images (n, 32, 32, 3) of a .npy file as a memory-mapped array (n, 3, 32, 32)."""
    x = mapped(path)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (32, 32, 3):
        raise unreadable(path, ValueError(f"the file holds {x.dtype} of shape {x.shape}, not bytes (n, 32, 32, 3)"))
    return x.transpose(0, 3, 1, 2)


def labels(path: Path, n: int) -> Any:
    """Return the n labels of a .npy file as int64."""
    y = mapped(path)
    if y.shape != (n,) or y.dtype.kind not in "iu":
        raise unreadable(path, ValueError(f"the file holds {y.dtype} of shape {y.shape}, not {n} labels"))
    return np.array(y, dtype=np.int64)
