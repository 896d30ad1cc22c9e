"""Read arrays from .npz and .safetensors files; nothing is allocated before its size is known to be reasonable."""

import math
import os
import struct
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from brinell.errors import error_text
from brinell.untrusted.limits import open_plain, read_plain
from brinell.untrusted.zip_files import open_zip

# What numpy and safetensors raise for damaged files.
DAMAGE = (
    SafetensorError, SyntaxError, TokenError, EOFError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
    MemoryError, RecursionError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip
END = ".npy"
BLOCK = 1 << 20
# The largest header of a safetensors file, and the most tensors: large networks have some thousands.
HEADER_BYTES, MOST_TENSORS = 1 << 24, 50_000


def npz_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arrays of a .npz file by name, in this machine's byte order; raise a ValueError for any defect."""
    try:
        with open_zip(path) as archive:
            arrays = {}
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    arrays[entry.filename.removesuffix(END)] = _array(file, entry.file_size)
            return arrays
    except DAMAGE as error:
        raise ValueError(error_text(error)) from error


def safetensors_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arrays of a .safetensors file by name; raise a ValueError for any defect."""
    try:
        data = read_plain(path)
        refuse_many_tensors(data)
        return dict(load(data))
    except DAMAGE as error:
        raise ValueError(error_text(error)) from error


def refuse_many_tensors(data: bytes) -> None:
    """Raise a ValueError if the header at the start of safetensors bytes is long or has very many entries."""
    size = int.from_bytes(data[:8], "little")
    if size > HEADER_BYTES or data.count(b"data_offsets", 8, 8 + size) > MOST_TENSORS:
        raise ValueError(f"a header of {size:,} bytes, or more than {MOST_TENSORS:,} arrays")


def checked_safetensors(path: str | os.PathLike[str]) -> Path:
    """Return the path of a .safetensors file whose header has a reasonable size; raise a ValueError otherwise."""
    with open_plain(path) as file:
        start = file.read(8)
        refuse_many_tensors(start + file.read(min(int.from_bytes(start, "little"), HEADER_BYTES)))
    return Path(path)


def _array(file: IO[bytes], size: int) -> Any:
    """Return the array of an open .npy file of `size` bytes, which is read only if it has exactly the declared size."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array in version {version} of the format")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject or dtype.fields is not None:
        raise ValueError(f"an array of {dtype}, which are no plain numbers")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared > size:
        raise ValueError(f"an array of shape {shape}, which does not fit {size:,} bytes")
    data = bytearray()
    while len(data) < declared and (block := file.read(min(BLOCK, declared - len(data)))):
        data += block
    values = np.frombuffer(data, dtype, count=math.prod(shape))
    array = values.reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)
