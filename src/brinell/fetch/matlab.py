"""Read numeric arrays from a MATLAB file of version 5: the part of the format that data sets and weights use."""

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from brinell.errors import error_text
from brinell.untrusted import allowed_bytes, open_plain, read_plain, refuse_large

HEAD, VERSION, START = 128, 0x0100, b"MATLAB 5.0 MAT-file"
# The stored type of numbers and the type of the array: an array of doubles may be stored as bytes.
STORED_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
ARRAY_TYPES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
MATRIX, COMPRESSED = 14, 15
# The elements of an array: flags, shape, name and values. Complex arrays have more.
PARTS = 4


def matlab_arrays(path: Path) -> dict[str, Any]:
    """Return all numeric arrays of a file by name; raise a ValueError if the file is damaged."""
    try:
        raw = memoryview(read_plain(path))
        order = {b"IM": "<", b"MI": ">"}.get(bytes(raw[126:HEAD]))
        if order is None or struct.unpack(f"{order}H", raw[124:126])[0] != VERSION:
            raise ValueError("this is not a MATLAB file of version 5")
        return dict(_matrices(_decompressed(raw[HEAD:], order, allowed_bytes(path)), order, allowed_bytes(path)))
    except (OSError, KeyError, OverflowError, MemoryError, struct.error, zlib.error) as error:
        raise ValueError(error_text(error)) from error


def is_matlab(path: Path) -> bool:
    """Return whether a file starts like a MATLAB file of version 5."""
    with open_plain(path) as file:
        return file.read(len(START)) == START


def _elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at < len(raw):
        kind, size = struct.unpack(f"{order}2I", raw[at : at + 8])
        if kind >> 16:  # a small element: up to four bytes in the place of the size
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            # Compressed elements are not padded to a multiple of eight bytes.
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(raw):
            raise ValueError("the file ends too early")
        yield kind, raw[start : start + size]
        at = end


def _decompressed(raw: memoryview, order: str, allowed: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the elements, including elements inside compressed elements, which are never nested."""
    for kind, content in _elements(raw, order):
        if kind == COMPRESSED:
            inflated = memoryview(_inflated(content, order, allowed))
            allowed -= len(inflated)
            yield from _elements(inflated, order)
        else:
            yield kind, content


def _inflated(content: memoryview, order: str, allowed: int) -> bytes:
    """Return the element inside a compressed element; decompress no more bytes than its header declares."""
    stream = zlib.decompressobj()
    head = stream.decompress(content, 8)
    (size,) = struct.unpack(f"{order}4xI", head)
    refuse_large(size, allowed, "an array")
    return head + (stream.decompress(stream.unconsumed_tail, size) if size else b"")


def _matrices(elements: Iterator[tuple[int, memoryview]], order: str, allowed: int) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of numeric arrays; skip cells, structures and text."""
    total = 0
    for content in (content for kind, content in elements if kind == MATRIX):
        parts = [*islice(_elements(content, order), PARTS)]
        if len(parts) < PARTS:
            raise ValueError("an array is incomplete")
        (_, flags), (_, shape), (_, name), (stored_type, values) = parts
        array_type = ARRAY_TYPES.get(struct.unpack(f"{order}I", flags[:4])[0] & 0xFF)
        if array_type is not None:
            stored = np.frombuffer(values, order + STORED_TYPES[stored_type])
            total += stored.size * np.dtype(array_type).itemsize
            refuse_large(total, allowed, "the content")
            numbers = stored.astype(array_type)
            sizes = tuple(int(n) for n in np.frombuffer(shape, f"{order}u4"))
            yield bytes(name).decode("latin-1"), numbers.reshape(sizes, order="F")
