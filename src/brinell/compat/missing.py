"""The errors for names of another library that its replacement has not."""

import sys
from collections.abc import Iterable, Mapping
from opcode import opmap
from types import FrameType
from typing import NoReturn

from brinell.errors import MissingImport, MissingName, did_you_mean


def refuse_name(
    module: str, name: str, known: Iterable[str], instead: Mapping[str, str], otherwise: str = "Check the spelling."
) -> NoReturn:
    """Raise that a module lacks a name; called by its `__getattr__`.

    The error is an AttributeError, so `hasattr` answers, and in `from module import name` an ImportError: Python would
    replace an AttributeError there by an ImportError without the remedy.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    names = list(known)
    remedy = f"Use {instead[name]}." if name in instead else did_you_mean(name, names, otherwise)
    kind = MissingImport if _is_imported(name) else MissingName
    raise kind(expected=f"names of {module}: {', '.join(names)}", got=name, remedy=remedy)


def _is_imported(name: str) -> bool:
    """Return whether a caller is at `from … import name`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, at = frame.f_code, frame.f_lasti
        if code.co_code[at] == opmap["IMPORT_FROM"] and code.co_names[code.co_code[at + 1]] == name:
            return True
        frame = frame.f_back
    return False
