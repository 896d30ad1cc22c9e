"""Load a torch checkpoint of somebody else: without running code, and only if its tensors have a reasonable size."""

import pickletools
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from brinell.untrusted import allowed_bytes, open_plain, open_zip, refuse_large

# The file with the objects in a checkpoint, which is a zip archive. The largest that is read.
OBJECTS, OBJECTS_BYTES = "data.pkl", 1 << 26
# torch makes only harmless objects from a pickle, but this one has as many bytes as the pickle says.
COSTLY = "bytearray"
NAMES = ("GLOBAL", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE")
PICKLES = 4
# Operations of a pickle that store and fetch objects by number, and those whose result holds what they take.
STORES, FETCHES = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
KEEPING = ("TUPLE", "FROZENSET", "REDUCE", "NEWOBJ", "BUILD", "DUP")
SLICE = (pickletools.markobject, pickletools.stackslice)
HEAVIEST = 1_000_000
# How many objects of a checkpoint are looked at: a few bytes can nest lists to any number.
MOST_OBJECTS = 1 << 20


def load_checkpoint(path: Path) -> Any:
    """Return the content of a torch checkpoint on the CPU; raise an error for code, and for tensors of any other size.

    A tensor can repeat the few numbers of its storage any number of times, so a copy of it can fill the memory.
    """
    with open_plain(path) as file:
        packed = file.read(2) == b"PK"
        file.seek(0)
        # Before torch 1.6 a checkpoint was a row of pickles, then the numbers.
        for _ in range(0 if packed else PICKLES):
            _refuse_objects(file)
    if packed:
        _refuse_costly(path)
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    # Tensors become float32.
    total = sum(tensor.numel() * max(4, tensor.element_size()) for tensor in _tensors(checkpoint))
    refuse_large(total, allowed_bytes(path), "all tensors together")
    return checkpoint


def _refuse_costly(path: Path) -> None:
    with open_zip(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename!r} is compressed, which torch never does")
            if entry.filename.endswith(OBJECTS):
                refuse_large(entry.file_size, OBJECTS_BYTES, entry.filename)
                _refuse_objects(BytesIO(archive.read(entry)))


def _refuse_objects(pickled: IO[bytes]) -> None:
    """Raise a ValueError if a pickle makes a costly object: many empty bytes, or tuples in tuples without end.

    Method: the stack of the pickle holds a weight for each object, the number of values in a tuple and its tuples. As
    the key of a dict, such a tuple would take forever to hash.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[Any, int] = {}
    for code, value, _ in pickletools.genops(pickled):
        if code.name in NAMES and str(value).endswith(COSTLY):
            raise ValueError(f"the checkpoint makes a {str(value)[:60]}")
        if code.name == "MARK":
            marks.append(len(stack))
        elif code.name in STORES:
            memo[len(memo) if value is None else value] = stack[-1]
        elif code.name in FETCHES:
            stack.append(memo[value])
        else:
            taken = [kind for kind in code.stack_before if kind not in SLICE]
            start = (marks.pop() if len(taken) < len(code.stack_before) else len(stack)) - len(taken)
            weight = 1 + sum(stack[start:]) if code.name.startswith(KEEPING) else 1
            if weight > HEAVIEST or start < 0:
                raise ValueError("the checkpoint nests tuples, or is damaged")
            stack[start:] = [weight] * len(code.stack_after)


def _tensors(checkpoint: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested dicts, lists and tuples once."""
    seen: set[int] = set()
    pending = [checkpoint]
    while pending and len(seen) <= MOST_OBJECTS:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple | set):
            pending += value
    if pending:
        raise ValueError(f"more than {MOST_OBJECTS:,} objects in a checkpoint")
