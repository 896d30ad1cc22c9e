"""Read the file formats of published data sets: CIFAR pickles, idx files, .npy files. Files can run no code."""

import gzip
import math
import pickle
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar

import numpy as np

from brinell.errors import InputError, error_text
from brinell.untrusted import allowed_bytes, open_plain, plain_file, read_plain, refuse_large

GZIP = b"\x1f\x8b"
LONGEST_DTYPE = 8
# The most values in nested tuples: those of numpy have about ten.
HEAVIEST = 1_000
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


def _dtype(name: Any, *_: Any) -> Any:
    """Return a new dtype by its short name, such as "u1"; raise an error for other arguments, which can be costly."""
    if not isinstance(name, str | bytes) or len(name) > LONGEST_DTYPE:
        raise pickle.UnpicklingError("the pickle has an array of an unusual type")
    return np.dtype(name if isinstance(name, str) else name.decode("ascii"), copy=True)


# The only functions that a CIFAR pickle needs. Any other one could run code. These accept only the arguments that
# numpy writes, because other arguments could allocate arrays of any size.
ALLOWED = {
    ("numpy", "ndarray"): "the class of arrays",
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("_codecs", "encode"): _latin,
}


class _Arrays(pickle._Unpickler):
    """An unpickler that accepts only numpy arrays and plain values, and runs no other code.

    It is the one in Python: in the one in C, five bytes of a file can allocate gigabytes for the table of objects.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, encoding="bytes")
        self.weights: dict[int, tuple[int, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the pickle calls {module}.{name}, which is not allowed")
        return ALLOWED[module, name]


def _load_build(unpickler: Any) -> None:
    """Set the state of an array or its type; other objects, such as the functions in ALLOWED, keep their state."""
    if not isinstance(unpickler.stack[-2], np.ndarray | np.dtype):
        raise pickle.UnpicklingError("the pickle changes an object that is no array")
    unpickler.load_build()


def _load_tuple(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the function that loads a tuple, with a limit: tuples in tuples can take forever to hash."""

    def load_small(unpickler: Any) -> None:
        load(unpickler)
        made = unpickler.stack[-1]
        # The tuple is kept with its weight, so that no other object gets its id.
        weight = 1 + sum(unpickler.weights.get(id(value), (1,))[0] for value in made)
        if weight > HEAVIEST:
            raise pickle.UnpicklingError("the pickle nests tuples")
        unpickler.weights[id(made)] = weight, made

    return load_small


for _opcode in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _Arrays.dispatch[_opcode[0]] = _load_tuple(_Arrays.dispatch[_opcode[0]])
for _opcode in (pickle.FROZENSET, pickle.EMPTY_SET, pickle.ADDITEMS):
    del _Arrays.dispatch[_opcode[0]]
_Arrays.dispatch[pickle.BUILD[0]] = _load_build


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
        stored = _Arrays(BytesIO(read_plain(path))).load()
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
        with open_plain(path) as start_of_file:
            packed = start_of_file.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else open_plain(path) as file:
            start = file.read(4)
            if start != bytes((0, 0, 8, rank)):
                raise ValueError(f"the file starts with {start!r}, not {bytes((0, 0, 8, rank))!r}")
            shape = tuple(int(n) for n in np.frombuffer(file.read(4 * rank), ">u4", count=rank))
            refuse_large(math.prod(shape), allowed_bytes(path), "the array")
            values = file.read(math.prod(shape))
            if file.read(1):
                raise ValueError(f"the file holds more than the {math.prod(shape)} bytes that it declares")
        return np.frombuffer(values, np.uint8).reshape(shape).copy()
    except DAMAGE as error:
        raise unreadable(path, error) from error


def mapped(path: Path) -> Any:
    """Return the memory-mapped array of a .npy file."""
    try:
        return np.lib.format.open_memmap(plain_file(path), mode="r")
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
