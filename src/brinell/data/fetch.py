"""Download data sets into the cache and verify them. A cached file is always complete and verified."""

from collections.abc import Iterable
from pathlib import Path

from brinell.data import array_formats
from brinell.data.catalogue import DataFile, DataSet, find
from brinell.data.image_folders import LIST_DIGEST, LIST_NAME, LIST_URLS
from brinell.data.layouts import Subset, locate
from brinell.data.matlab import read_mat
from brinell.errors import InputError
from brinell.fetch import Progress, Wanted, obtain, unpack
from brinell.paths import home


def place(name: str) -> Path:
    """Return the cache folder of a data set, which may not exist yet.

    >>> place("mnist").parts[-2:]
    ('data', 'mnist')
    """
    return home() / "data" / find(name).name


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Download the files of a data set that the cache lacks, verify them, and return the cache folder of the data set.

    The large subset `extra` of SVHN is downloaded only when it is first loaded. Archives are unpacked and deleted.
    `progress` is called with the bytes so far and the total, for each file.
    """
    s = find(name)
    if not s.files:
        raise _missing_files(s, s.layout.subsets()[0], place(name))
    _fetch(s, [f for f in s.files if not f.later], progress)
    return place(name)


def locate_or_fetch(s: DataSet, subset: Subset, root: Path | None = None) -> Path:
    """Return the folder with the files of a subset; download absent files if the data set allows it (`automatic`)."""
    base = place(s.name) if root is None else root
    folder = locate(s.layout, subset, base)
    if root is None and folder is not None:
        verify_files(s, subset)
    elif root is None and s.automatic:
        _fetch(s, _needed(s, subset))
        folder = locate(s.layout, subset, base)
    if folder is None:
        raise _missing_files(s, subset, base)
    return folder


def robustbench_list() -> Path:
    """Return the path of RobustBench's list of 5,000 ImageNet pictures; download the list if the cache lacks it."""
    what = "RobustBench's list of 5,000 ImageNet pictures"
    wanted = Wanted(what, place("imagenet") / LIST_NAME, LIST_URLS, LIST_NAME, f"sha256:{LIST_DIGEST}")
    return obtain(wanted, lambda path: None)


def verify_files(s: DataSet, subset: Subset) -> None:
    """Raise an InputError if a cached file of the subset has changed since it was fetched."""
    _fetch(s, [f for f in _needed(s, subset) if not f.holds and (place(s.name) / f.name).exists()])


def _needed(s: DataSet, subset: Subset) -> list[DataFile]:
    names = {end for name in s.layout.files(subset) for end in (name, f"{name}.gz")}
    return [f for f in s.files if f.holds or f.name in names]


def _missing_files(s: DataSet, subset: Subset, base: Path) -> InputError:
    files = ", ".join(s.layout.files(subset))
    folders = [(base / p).as_posix() for p in s.layout.places(subset)]
    remedy = "Pass root=FOLDER with these files, or omit root to use the cache."
    if s.automatic and base == place(s.name):
        remedy = f"The cached files are incomplete: delete {base} to fetch them again, or pass root=FOLDER."
    elif s.by_hand:
        remedy = f"{s.by_hand} and put them, or a link to them, at {folders[0]}. Or pass root=FOLDER with these files."
    return InputError(
        expected=f"{s.title} on this machine: {files} in {' or '.join(folders)}", got="no such files", remedy=remedy
    )


def _fetch(s: DataSet, files: Iterable[DataFile], progress: Progress | None = None) -> None:
    files = list(files)
    try:
        for file in files:
            _file(s, file, progress)
    except InputError as error:
        missing = [f for f in files if not _exists(s, f)]
        if not missing:
            raise
        # Name all missing files, so that the user can download them in one go.
        wanted = "; ".join(f"{' or '.join(f.sources)} to {place(s.name) / f.name}" for f in missing)
        raise InputError(
            expected=error.expected,
            got=error.got,
            remedy=f"Try again later (an interrupted download continues), or download {wanted}. Or pass root=FOLDER "
            "with the data set.",
        ) from error


def _exists(s: DataSet, file: DataFile) -> bool:
    names = file.holds or (file.name,)
    return all((place(s.name) / name).exists() for name in names)


def _file(s: DataSet, file: DataFile, progress: Progress | None) -> None:
    """Fetch one file into the cache; unpack it if it is an archive."""
    if file.holds and _exists(s, file):
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
    provided_by_user = wanted.path.exists()
    obtain(wanted, lambda path: _unpack(s, file, path), progress)
    if not _exists(s, file):
        _unpack(s, file, wanted.path)
    if not provided_by_user:
        wanted.path.unlink(missing_ok=True)  # another process may have deleted it


def _inspect(file: DataFile, path: Path) -> None:
    if file.name.endswith(".mat"):
        read_mat(path, "X", "y")
    elif file.name.endswith(".npy"):
        array_formats.mapped(path)
    else:
        array_formats.idx(path, 3 if "idx3" in file.name else 1)


def _unpack(s: DataSet, file: DataFile, path: Path) -> None:
    """Unpack an archive into the cache; as a test, its files are read before they get their final names."""

    def inspect(folder: Path) -> None:
        absent = [name for name in file.holds if not (folder / name).exists()]
        if absent:
            raise InputError(
                expected=f"{', '.join(absent)} in {file.name}",
                got=", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "nothing",
                remedy=f"Download {' or '.join(file.sources)} again.",
            )
        for subset in [c for c in s.layout.subsets() if s.layout.places(c)[0].split("/")[0] in file.holds]:
            subset_folder = locate(s.layout, subset, folder)
            if subset_folder is None:
                raise InputError(
                    expected=f"{', '.join(s.layout.files(subset))} of {subset.label or subset.split} in {file.name}",
                    got="no such files",
                    remedy=f"Download {' or '.join(file.sources)} again.",
                )
            s.layout.read(subset_folder, subset)

    unpack(path, place(s.name), f"{file.name} of {s.title}", InputError, inspect)
