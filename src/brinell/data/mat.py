"""Arrays of numbers in a MATLAB file of version 5: the part of the format that data sets use."""

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from brinell.data.raw import unreadable

__all__ = ["read_mat"]

HEAD, VERSION = 128, 0x0100
# How numbers are written, and as what they are meant: a matrix of doubles may be written in bytes.
WRITTEN = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MEANT = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
MATRIX, COMPRESSED = 14, 15
# Of an array: its flags, sizes, name and values; complex ones have more.
PARTS = 4


def read_mat(path: Path, *names: str) -> list[Any]:
    """The arrays of these names."""
    try:
        raw = memoryview(path.read_bytes())
        order = {b"IM": "<", b"MI": ">"}.get(bytes(raw[126:HEAD]))
        if order is None or struct.unpack(f"{order}H", raw[124:126])[0] != VERSION:
            raise ValueError("it is no MATLAB file of version 5")
        found = dict(_matrices(_opened(raw[HEAD:], order), order))
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"it has no {missing[0]}, but {', '.join(found) or 'nothing'}")
        return [found[name] for name in names]
    except (OSError, ValueError, KeyError, OverflowError, MemoryError, struct.error, zlib.error) as error:
        raise unreadable(path, error) from error


def _elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Kinds and contents, one after the other."""
    at = 0
    while at < len(raw):
        kind, size = struct.unpack(f"{order}2I", raw[at : at + 8])
        if kind >> 16:  # up to four bytes, which stand where the size would be
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            # What is compressed is not filled up to a multiple of eight.
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(raw):
            raise ValueError("it ends too early")
        yield kind, raw[start : start + size]
        at = end


def _opened(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The elements, those inside compressed ones among them; nothing is compressed twice."""
    for kind, content in _elements(raw, order):
        if kind == COMPRESSED:
            yield from _elements(memoryview(_inflated(content, order)), order)
        else:
            yield kind, content


def _inflated(content: memoryview, order: str) -> bytes:
    """The element inside a compressed one, of which no more is unpacked than its head announces."""
    stream = zlib.decompressobj()
    head = stream.decompress(content, 8)
    (size,) = struct.unpack(f"{order}4xI", head)
    return head + (stream.decompress(stream.unconsumed_tail, size) if size else b"")


def _matrices(elements: Iterator[tuple[int, memoryview]], order: str) -> Iterator[tuple[str, Any]]:
    """Names and values of the arrays of numbers; cells, structures and text are passed over."""
    for content in (content for kind, content in elements if kind == MATRIX):
        parts = [*islice(_elements(content, order), PARTS)]
        if len(parts) < PARTS:
            raise ValueError("an array of it is not whole")
        (_, flags), (_, shape), (_, name), (written, values) = parts
        meant = MEANT.get(struct.unpack(f"{order}I", flags[:4])[0] & 0xFF)
        if meant is not None:
            numbers = np.frombuffer(values, order + WRITTEN[written]).astype(meant)
            sizes = tuple(int(n) for n in np.frombuffer(shape, f"{order}u4"))
            yield bytes(name).decode("latin-1"), numbers.reshape(sizes, order="F")
