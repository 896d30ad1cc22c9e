"""Archives unpacked below one folder and nowhere else."""

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

from brinell.errors import BrinellError, error_text
from brinell.fetch.download import fcntl

__all__ = ["unpack"]

HIDDEN = ".unpacking-"
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError, ValueError, RuntimeError)
# The kind of file in the upper half of what Unix leaves in a zip file's attributes.
KIND, LINK = 0o170000, 0o120000


def unpack(archive: Path, into: Path, what: str, error: type[BrinellError], inspect: Callable[[Path], None]) -> None:
    """Puts what a tar or zip archive holds into the folder; an error, and nothing of it, if anything is wrong.

    Method: into a hidden folder first. Members that are no plain files or folders, or whose names lead elsewhere, are
    refused; `inspect` sees the whole before its parts get their names, and raises an error to refuse it. What is in
    the folder already stays as it is; what a killed process left half unpacked is removed.
    """
    into.mkdir(parents=True, exist_ok=True)
    with _alone(into), tempfile.TemporaryDirectory(prefix=HIDDEN, dir=into) as hidden:
        try:
            for name, file in _members(archive, what, error):
                _write(Path(hidden).joinpath(*name.parts), file)
        except BrinellError:
            raise
        except DAMAGE as trouble:
            raise error(
                expected=f"{what} as a whole archive",
                got=error_text(trouble),
                remedy=f"Delete {archive} and fetch it again; look whether there is room on the disk.",
            ) from trouble
        inspect(Path(hidden))
        for part in sorted(Path(hidden).iterdir()):
            if not (into / part.name).exists():
                part.replace(into / part.name)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process unpacks here; where folders cannot be locked, as it is."""
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


def _write(place: Path, file: IO[bytes] | None) -> None:
    if file is None:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with file, place.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)


def _members(archive: Path, what: str, error: type[BrinellError]) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    """Checked names with what can be read under them, None for folders."""

    def refused(name: str, why: str) -> BrinellError:
        return error(
            expected=f"{what} as an archive of plain files",
            got=f"a member {name!r} {why}",
            remedy="Do not use this archive: fetch it from another source.",
        )

    def checked(name: str) -> PurePosixPath:
        path = PurePosixPath(name.replace("\\", "/"))
        # A colon: on some systems it names a drive.
        if path.is_absolute() or ".." in path.parts or any(":" in p for p in path.parts[:1]):
            raise refused(name, "that leads out of the folder")
        return path

    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if (info.external_attr >> 16) & KIND == LINK:
                    raise refused(info.filename, "that is a link")
                yield checked(info.filename), None if info.is_dir() else packed.open(info)
        return
    with tarfile.open(archive) as tape:
        for member in tape:
            if not (member.isreg() or member.isdir()):
                raise refused(member.name, "that is a link or a device")
            # Its holes take no room in the archive and all they like on the disk.
            if member.issparse():
                raise refused(member.name, "with holes")
            yield checked(member.name), None if member.isdir() else tape.extractfile(member)
