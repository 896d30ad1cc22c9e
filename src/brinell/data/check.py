"""Whether the files of a data set are those that were published."""

import os
from dataclasses import dataclass
from pathlib import Path

from brinell.data.fetch import place, verified
from brinell.data.images import Images
from brinell.data.layouts import Choice, locate
from brinell.data.sets import Set, find
from brinell.errors import InputError

__all__ = ["Checked", "check", "state"]


@dataclass(frozen=True)
class Checked:
    """A part of a data set: how many images there are and should be, and what is wrong with it, if anything."""

    name: str
    n: int | None
    published: int
    trouble: str

    @property
    def ok(self) -> bool:
        """Whether it is there and whole."""
        return not self.trouble


def check(name: str, root: str | os.PathLike[str] | None = None) -> list[Checked]:
    """Every part of a data set read from the cache or from `root`; nothing is fetched.

    Method: numbers of images and classes must be the published ones, files in the cache have their digest; pictures are
    counted and not decoded.
    """
    s = find(name)
    base = place(name) if root is None else Path(root).expanduser()
    # Parts that may be absent are looked at where they are.
    further = [c for c in getattr(s.layout, "optional", ()) if locate(s.layout, c, base) is not None]
    return [_part(s, choice, base, own=root is None) for choice in (*s.layout.choices(), *further)]


def state(name: str) -> str:
    """How much of a data set the cache has: "whole", "part", or "" for nothing."""
    s = find(name)
    found = [locate(s.layout, c, place(name)) is not None for c in s.layout.choices()]
    return "whole" if all(found) else "part" if any(found) else ""


def _part(s: Set, choice: Choice, base: Path, own: bool) -> Checked:
    label, size = choice.label or choice.split, s.sizes[choice.version or choice.split]
    folder = locate(s.layout, choice, base)
    if folder is None:
        return Checked(label, None, size, f"no {', '.join(s.layout.files(choice))}")
    try:
        if own:
            verified(s, choice)
        found = s.layout.read(folder, choice)
    except InputError as error:
        return Checked(label, None, size, f"{error.got} instead of {error.expected}")
    n, labels = (len(found), found.labels) if isinstance(found, Images) else (len(found.y), found.y)
    trouble = "" if n == size else f"{n:,} images instead of {size:,}"
    if n and not 0 <= min(labels) <= max(labels) < s.classes:
        trouble = f"labels from {min(labels)} to {max(labels)} instead of 0 to {s.classes - 1}"
    return Checked(label, n, size, trouble)
