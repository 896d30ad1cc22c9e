"""Make text of others safe to print: no control characters, no broken Unicode, no formulas in tables."""

from collections.abc import Iterable
from typing import Any

from brinell.errors import printable

# A spreadsheet runs cells that start like this as formulas.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cleaned(value: Any) -> Any:
    """Return JSON data with all texts and keys printable; the data must not be nested deeply."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(v) for v in value]
    if isinstance(value, dict):
        return {printable(k): cleaned(v) for k, v in value.items()}
    return value


def csv_cells(row: Iterable[object]) -> list[object]:
    """Return the cells of a CSV row with an apostrophe before texts that a spreadsheet would run as a formula.

    >>> csv_cells(["=1+1", "-0.5", -0.5, "net"])
    ["'=1+1", '-0.5', -0.5, 'net']
    """
    return [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row]


def _is_formula(text: str) -> bool:
    if not text.startswith(FORMULA):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
