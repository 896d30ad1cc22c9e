"""Unpack archives into one folder and never outside it."""

import contextlib
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from brinell.errors import BrinellError, reported_as
from brinell.fetch.download import fcntl
from brinell.storage import make_folder
from brinell.untrusted import open_zip, refuse_large
from brinell.untrusted.limits import ALWAYS, FACTOR

HIDDEN = ".unpacking-"
# ImageNet has a million pictures.
MOST_FILES = 1 << 22
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError, ValueError, RuntimeError)
# The upper half of the attributes in a zip file made on Unix holds the file type.
KIND, LINK = 0o170000, 0o120000


def unpack(archive: Path, into: Path, what: str, error: type[BrinellError], inspect: Callable[[Path], None]) -> None:
    """Unpack a tar or zip archive into a folder; if anything is wrong, raise an `error` and leave nothing behind.

    Method: members are first unpacked into a hidden folder. Links, devices and names that lead out of the folder are
    refused. `inspect` gets the hidden folder and may raise an error to refuse it. Existing files in `into` are kept;
    hidden folders of killed processes are removed.
    """
    make_folder(into)
    with _exclusive_access(into), tempfile.TemporaryDirectory(prefix=HIDDEN, dir=into) as hidden:
        remedy = f"Delete {archive} and download it again; check the free disk space."
        with reported_as(error, *DAMAGE, expected=f"{what} as a complete archive", remedy=remedy):
            remaining = max(ALWAYS, FACTOR * archive.stat().st_size)
            for name, file in _members(archive, what, error):
                remaining -= _write(Path(hidden).joinpath(*name.parts), file, remaining)
        inspect(Path(hidden))
        _move(Path(hidden), into)


def _move(source: Path, into: Path) -> None:
    """Move the contents of `source` into the folder `into`; existing folders are filled, existing files are kept."""
    for entry in sorted(source.iterdir()):
        if entry.is_dir() and (into / entry.name).is_dir():
            _move(entry, into / entry.name)
        elif not (into / entry.name).exists():
            entry.replace(into / entry.name)


@contextlib.contextmanager
def _exclusive_access(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, where the platform can lock folders."""
    fd = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        with contextlib.suppress(OSError):
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)
                for stale in folder.glob(f"{HIDDEN}*"):
                    shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _write(place: Path, file: IO[bytes] | None, most: int) -> int:
    """Write a member, a folder if `file` is None, and return its size; raise a ValueError beyond `most` bytes."""
    if file is None:
        place.mkdir(parents=True, exist_ok=True)
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    with file, place.open("wb") as out:
        while block := file.read(1 << 20):
            out.write(block)
            refuse_large(out.tell(), most, "the unpacked archive")
        return out.tell()


def _members(archive: Path, what: str, error: type[BrinellError]) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    """Yield the checked path and the open file of every member; the file is None for folders."""

    def refused(name: str, why: str) -> BrinellError:
        return error(
            expected=f"{what} as an archive of plain files",
            got=f"a member {name!r} {why}",
            remedy="Do not use this archive: download it from another source.",
        )

    def checked(name: str) -> PurePosixPath:
        path = PurePosixPath(name.replace("\\", "/"))
        # On some systems a colon names a drive.
        if path.is_absolute() or ".." in path.parts or any(":" in p for p in path.parts[:1]):
            raise refused(name, "that leads out of the folder")
        return path

    if zipfile.is_zipfile(archive):
        with open_zip(archive, MOST_FILES) as packed:
            for info in packed.infolist():
                if (info.external_attr >> 16) & KIND == LINK:
                    raise refused(info.filename, "that is a link")
                yield checked(info.filename), None if info.is_dir() else packed.open(info)
        return
    with tarfile.open(archive) as packed_tar:
        for member in packed_tar:
            if not (member.isreg() or member.isdir()):
                raise refused(member.name, "that is a link or a device")
            # A small sparse member can fill the disk.
            if member.issparse():
                raise refused(member.name, "that is sparse")
            yield checked(member.name), None if member.isdir() else packed_tar.extractfile(member)
