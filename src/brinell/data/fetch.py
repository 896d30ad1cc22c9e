"""Data sets from where they are published into the cache: whole and checked, or not at all."""

from collections.abc import Iterable
from pathlib import Path

from brinell.data import raw
from brinell.data.layouts import Choice, locate
from brinell.data.mat import read_mat
from brinell.data.sets import File, Set, find
from brinell.errors import InputError
from brinell.fetch import Progress, Wanted, obtain, unpack
from brinell.paths import home

__all__ = ["fetch", "place", "provide", "verified"]


def place(name: str) -> Path:
    """The folder of the cache that holds the data set of this name; it need not exist yet.

    >>> place("mnist").parts[-2:]
    ('data', 'mnist')
    """
    return home() / "data" / find(name).name


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Every file of a data set in the cache, whole and checked; what is there already is not fetched again.

    Large parts for training (SVHN's `extra`) wait until they are loaded. Archives are unpacked and not kept.
    `progress` is called with bytes so far and in all, for each file anew.
    """
    s = find(name)
    if not s.files:
        raise _absent(s, s.layout.choices()[0], place(name))
    _fetch(s, [f for f in s.files if not f.later], progress)
    return place(name)


def provide(s: Set, choice: Choice, root: Path | None = None) -> Path:
    """The folder with the files of a part of a data set; fetched first if they are in no place and may be fetched."""
    base = place(s.name) if root is None else root
    found = locate(s.layout, choice, base)
    if root is None and found is not None:
        verified(s, choice)
    elif root is None and s.automatic:
        _fetch(s, _needed(s, choice))
        found = locate(s.layout, choice, base)
    if found is None:
        raise _absent(s, choice, base)
    return found


def verified(s: Set, choice: Choice) -> None:
    """An InputError if a file of the cache has changed since it came there."""
    _fetch(s, [f for f in _needed(s, choice) if not f.holds and (place(s.name) / f.name).exists()])


def _needed(s: Set, choice: Choice) -> list[File]:
    names = {end for name in s.layout.files(choice) for end in (name, f"{name}.gz")}
    return [f for f in s.files if f.holds or f.name in names]


def _absent(s: Set, choice: Choice, base: Path) -> InputError:
    files = ", ".join(s.layout.files(choice))
    folders = [(base / p).as_posix() for p in s.layout.places(choice)]
    remedy = "Pass as root a folder that has them, or leave it out to use the cache."
    if s.automatic and base == place(s.name):
        remedy = f"What is there is not whole: delete {base} to have it fetched anew, or pass root=."
    elif s.by_hand:
        remedy = f"{s.by_hand} and put them, or a link to them, at {folders[0]}; or pass root=, a folder that has them."
    return InputError(
        expected=f"{s.title} on this machine: {files} in {' or '.join(folders)}", got="no such files", remedy=remedy
    )


def _fetch(s: Set, files: Iterable[File], progress: Progress | None = None) -> None:
    files = list(files)
    try:
        for file in files:
            _file(s, file, progress)
    except InputError as error:
        missing = [f for f in files if not _there(s, f)]
        if not missing:
            raise
        # All of them at once: who must do it by hand wants to do it once.
        wanted = "; ".join(f"{' or '.join(f.sources)} to {place(s.name) / f.name}" for f in missing)
        raise InputError(
            expected=error.expected,
            got=error.got,
            remedy=f"Try again later (a download that was cut goes on where it was), or fetch by hand {wanted}; or "
            "pass root=, a folder that has the data set already.",
        ) from error


def _there(s: Set, file: File) -> bool:
    names = file.holds or (file.name,)
    return all((place(s.name) / name).exists() for name in names)


def _file(s: Set, file: File, progress: Progress | None) -> None:
    """One file into the cache; of an archive, what it holds."""
    if file.holds and _there(s, file):
        return
    wanted = Wanted(
        what=f"{file.name} of {s.title}",
        path=place(s.name) / file.name,
        urls=file.sources,
        mirrored=f"data/{s.name}/{file.name}",
        digest=file.digest,
    )
    if not file.holds:
        obtain(wanted, lambda path: _inspect(file, path), progress)
        return
    by_hand = wanted.path.exists()
    obtain(wanted, lambda path: _unpack(s, file, path), progress)
    if not _there(s, file):
        _unpack(s, file, wanted.path)
    if not by_hand:
        wanted.path.unlink(missing_ok=True)  # another process may have been here


def _inspect(file: File, path: Path) -> None:
    """An InputError if a file cannot be read as what it will be."""
    if file.name.endswith(".mat"):
        read_mat(path, "X", "y")
    elif file.name.endswith(".npy"):
        raw.mapped(path)
    else:
        raw.idx(path, 3 if "idx3" in file.name else 1)


def _unpack(s: Set, file: File, path: Path) -> None:
    """What an archive holds into the cache; pickles and arrays in it are read once before they get their names."""

    def inspect(folder: Path) -> None:
        absent = [name for name in file.holds if not (folder / name).exists()]
        if absent:
            raise InputError(
                expected=f"{', '.join(absent)} in {file.name}",
                got=", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "nothing",
                remedy="It is not the archive of this data set.",
            )
        for choice in [c for c in s.layout.choices() if s.layout.places(c)[0].split("/")[0] in file.holds]:
            found = locate(s.layout, choice, folder)
            if found is None:
                raise InputError(
                    expected=f"{', '.join(s.layout.files(choice))} of {choice.label or choice.split} in {file.name}",
                    got="no such files",
                    remedy="It is not the archive of this data set.",
                )
            s.layout.read(found, choice)

    unpack(path, place(s.name), f"{file.name} of {s.title}", InputError, inspect)
