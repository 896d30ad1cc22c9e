"""Read the MATLAB files of data sets."""

from pathlib import Path
from typing import Any

from brinell.data.array_formats import unreadable
from brinell.fetch import matlab_arrays


def read_mat(path: Path, *names: str) -> list[Any]:
    """Return the arrays called `names` from a MATLAB file, in this order."""
    try:
        arrays = matlab_arrays(path)
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ValueError(f"the file has no array {missing[0]}, only {', '.join(arrays) or 'other data'}")
        return [arrays[name] for name in names]
    except ValueError as error:
        raise unreadable(path, error) from error
