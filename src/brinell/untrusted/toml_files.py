"""Read TOML with the limits of JSON on size, depth and numbers."""

import os
import sys
from typing import Any

from brinell.untrusted.json_files import refuse_extremes
from brinell.untrusted.limits import read_plain

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same module under its earlier name
    import tomli as tomllib

# TOML is written by hand.
LARGEST = 1 << 20


def parse_toml(text: str) -> dict[str, Any]:
    """Return the data in a TOML text; raise a ValueError for defects, deep nesting, NaN and numbers out of range.

    >>> parse_toml("[system]\\nname = 'a'")
    {'system': {'name': 'a'}}
    >>> parse_toml("a = " + "[" * 5000)
    Traceback (most recent call last):
    ValueError: TOML that is nested too deeply
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("TOML that is nested too deeply") from None
    refuse_extremes(data, kind="TOML")
    return data


def read_toml(path: str | os.PathLike[str], largest: int = LARGEST) -> dict[str, Any]:
    """Return the data in a TOML file of at most `largest` bytes; raise a ValueError or an OSError for any defect."""
    return parse_toml(read_plain(path, largest).decode("utf-8"))
