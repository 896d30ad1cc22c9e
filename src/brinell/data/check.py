"""Check that the files of a data set are complete and unchanged."""

import os
from dataclasses import dataclass
from pathlib import Path

from brinell.data.catalogue import DataSet, find
from brinell.data.fetch import place, verify_files
from brinell.data.image_folders import Images
from brinell.data.layouts import Subset, locate
from brinell.errors import InputError


@dataclass(frozen=True)
class CheckedSubset:
    """A subset on disk: its number of images (None if unreadable), the published number, and what is wrong, if any."""

    name: str
    n: int | None
    published: int
    trouble: str

    @property
    def ok(self) -> bool:
        """Whether the subset is present and as published."""
        return not self.trouble


def check(name: str, root: str | os.PathLike[str] | None = None) -> list[CheckedSubset]:
    """Check every subset of a data set in the cache, or in the folder `root`, without downloading anything.

    Method: the numbers of images and classes must be the published ones, and files in the cache must have the published
    digest. Pictures are counted, not decoded.
    """
    s = find(name)
    base = place(name) if root is None else Path(root).expanduser()
    # Optional subsets are checked only if they are present.
    optional = [c for c in s.layout.optional() if locate(s.layout, c, base) is not None]
    return [_check(s, subset, base, cached=root is None) for subset in (*s.layout.subsets(), *optional)]


def state(name: str) -> str:
    """Return how much of a data set the cache has: "whole", "part", or "" for nothing."""
    s = find(name)
    present = [locate(s.layout, c, place(name)) is not None for c in s.layout.subsets()]
    return "whole" if all(present) else "part" if any(present) else ""


def _check(s: DataSet, subset: Subset, base: Path, cached: bool) -> CheckedSubset:
    label, size = subset.label or subset.split, s.sizes[subset.version or subset.split]
    folder = locate(s.layout, subset, base)
    if folder is None:
        return CheckedSubset(label, None, size, f"no {', '.join(s.layout.files(subset))}")
    try:
        if cached:
            verify_files(s, subset)
        data = s.layout.read(folder, subset)
    except InputError as error:
        return CheckedSubset(label, None, size, f"{error.got} instead of {error.expected}")
    n, labels = (len(data), data.labels) if isinstance(data, Images) else (len(data.y), data.y)
    trouble = "" if n == size else f"{n:,} images instead of {size:,}"
    if n and not 0 <= min(labels) <= max(labels) < s.classes:
        trouble = f"labels from {min(labels)} to {max(labels)} instead of 0 to {s.classes - 1}"
    return CheckedSubset(label, n, size, trouble)
