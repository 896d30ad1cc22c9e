"""Subgroups of the samples, from a CSV file: one column with ids, and one column for each grouping."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brinell.errors import InputError, error_text
from brinell.untrusted import cleaned, read_plain

ID = "id"
MOST_VALUES = 1000


class Grouping(NamedTuple):
    """One way to divide the samples: `places` has the position in `values` for each sample, -1 for none."""

    name: str
    values: tuple[str, ...]
    places: "np.ndarray[tuple[int], np.dtype[np.int32]]"


def by_value(name: str, found: Sequence[str | None], values: Sequence[str] = ()) -> Grouping:
    """Return the grouping of samples by a text each; `values` gives the order, which is else sorted.

    >>> by_value("sex", ["f", "m", None, "f"])[1:]
    (('f', 'm'), array([ 0,  1, -1,  0], dtype=int32))
    """
    ordered = tuple(values) or tuple(sorted({v for v in found if v is not None}))
    place = {value: i for i, value in enumerate(ordered)}
    return Grouping(name, ordered, np.array([-1 if v is None else place[v] for v in found], np.int32))


def read_groups(path: Path, ids: Sequence[int | str]) -> list[Grouping]:
    """Return the groupings of a CSV file for samples with these ids, none if it names none of them.

    An empty cell or a missing row means no group.
    """
    rows = _rows(path)
    known = {str(i) for i in ids}
    names = [name for name in rows[0] if name != ID] if rows else []
    by_id: dict[str, dict[str, str]] = {}
    for row in rows:
        if by_id.setdefault(row[ID], row) != row:
            raise _bad(path, f"two different rows for the id {row[ID]}", "Keep one row for each id.")
    if not known & set(by_id):
        return []
    groupings = [by_value(name, [by_id.get(str(i), {}).get(name) or None for i in ids]) for name in names]
    for grouping in groupings:
        if len(grouping.values) > MOST_VALUES:
            got = f"{len(grouping.values)} in the column {grouping.name}"
            raise _bad(path, got, f"Use at most {MOST_VALUES} groups; numbers must be binned first.")
    return groupings


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        lines = list(csv.reader(io.StringIO(read_plain(path).decode("utf-8-sig")), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise _bad(path, error_text(error), "Write a CSV file in UTF-8 with the header id,GROUPING.") from error
    head, *rows = [[cell.strip() for cell in cleaned(line)] for line in lines if any(line)] or [[]]
    if ID not in head or len(head) < 2 or len(set(head)) != len(head) or not all(head):
        raise _bad(path, f"the header {','.join(head)[:60]!r}", "Start the file with a line such as id,age,sex.")
    wrong = next((i for i, row in enumerate(rows, 2) if len(row) != len(head)), None)
    if wrong is not None:
        raise _bad(path, f"line {wrong} with another number of cells than the header", "Give each line all columns.")
    return [dict(zip(head, row, strict=True)) for row in rows]


def _bad(path: Path, got: str, remedy: str) -> InputError:
    return InputError(expected=f"sample ids and their groups in {path}", got=got, remedy=remedy)
