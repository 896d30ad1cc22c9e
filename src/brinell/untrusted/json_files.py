"""Read JSON with limits on size, depth and numbers."""

import json
import math
import os
from typing import Any

from brinell.untrusted.limits import read_plain

LARGEST = 1 << 26
DEEPEST = 40
# An empty list takes two bytes in a file and sixty in memory.
MOST_CONTAINERS = 1 << 20
# Larger integers cannot be stored in an array, and some cannot be converted to floats.
LARGEST_NUMBER = 1 << 64


def parse_json(text: bytes | str, finite: bool = True) -> Any:
    """Return the data in a JSON text; raise a ValueError for defects, deep nesting, NaN and numbers out of range.

    Unless `finite`, the values NaN and Infinity are accepted, which Python writes although JSON has no such values.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: JSON that is nested too deeply
    """
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets > MOST_CONTAINERS:
        raise ValueError(f"more than {MOST_CONTAINERS:,} lists and objects")
    try:
        # Python parses integers of up to 4,300 digits, and refuses longer ones.
        data = json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    refuse_extremes(data, finite)
    return data


def read_json(path: str | os.PathLike[str], largest: int = LARGEST, finite: bool = True) -> Any:
    """Return the data in a JSON file of at most `largest` bytes; raise a ValueError or an OSError for any defect."""
    return parse_json(read_plain(path, largest), finite)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"the value {name}, which is not valid JSON")


def refuse_extremes(data: Any, finite: bool = True, kind: str = "JSON") -> None:
    """Raise a ValueError for data that is nested deeply and for numbers out of range; no recursion, level by level."""
    level = [data]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
                raise ValueError(f"an integer of {value.bit_length():,} bits")
            elif finite and isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number that is too large")
        if not inner:
            return
        level = inner
    raise ValueError(f"{kind} that is nested too deeply, in more than {DEEPEST} levels")
