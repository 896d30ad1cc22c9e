"""Write files completely or not at all, and turn errors of the disk into errors with a remedy."""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from brinell.errors import BrinellError, StorageError

try:
    import fcntl
except ImportError:  # pragma: no cover - platforms without flock
    fcntl = None  # type: ignore[assignment]

TEMPORARY_END = ".tmp"
# A temporary file that is not locked and older than so many seconds belongs to a killed process.
ABANDONED_SECONDS = 60.0
AGAIN = "then run the same command again."
SPACE = f"Free space on this disk or choose another folder, {AGAIN}"
ACCESS = f"Make the folder writable or choose another one, {AGAIN}"
REMEDIES = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: SPACE,
    errno.EROFS: ACCESS,
    errno.EACCES: ACCESS,
    errno.EPERM: ACCESS,
    errno.ENOENT: f"Choose another folder, or make this one, {AGAIN}",
    errno.EMFILE: f"Raise the limit of open files (ulimit -n), {AGAIN}",
    errno.ENAMETOOLONG: "Pass a shorter path.",
    errno.EISDIR: "Pass the path of a file.",
    errno.ENOTDIR: "Pass a path below a folder.",
}


def is_disk_error(error: OSError) -> bool:
    """Return whether an error comes from the disk, not from a connection: it is full, read-only or not accessible."""
    return error.errno in REMEDIES and error.errno != errno.ENOENT


def storage_error(error: OSError, path: str | os.PathLike[str] | None = None) -> StorageError:
    """Return the error for a file or folder that cannot be read or written; `path` defaults to what `error` names.

    >>> print(storage_error(OSError(errno.ENOSPC, "No space left on device"), "out/report.html"))
    expected to read and write out/report.html, got OSError: No space left on device. Free space ...
    """
    given = error.filename if path is None else path
    where = os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else "files"
    remedy = REMEDIES.get(error.errno or 0, f"Check the path and the disk, {AGAIN}")
    got = f"{type(error).__name__}: {error.strerror or error}"
    return StorageError(expected=f"to read and write {where}", got=got, remedy=remedy)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names `path`; errors of Brinell pass unchanged."""
    try:
        yield
    except BrinellError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def make_folder(path: Path) -> None:
    """Make a folder and the folders above it, where they are missing."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_atomic(path: Path, data: Any) -> None:
    """Write bytes to `path` completely or not at all; return when the file is on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder, "a.txt"), b"text")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a.txt']
    """
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def write_output(path: Path, text: str) -> None:
    """Write a text file that the user names: completely or not at all, or as it goes to a pipe or device."""
    with output_path(path) as place, open(place, "wb") as file:
        file.write(text.encode())


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block it gets the name `path`, unless an error occurred."""
    temporary = temporary_path(path)
    with writing(path):
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            try:
                if fcntl is not None:
                    with suppress(OSError):  # not every file system has locks
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield temporary
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def output_path(path: Path) -> Iterator[Path]:
    """Yield where to write a file that the user names: like `atomic_path`, but for a pipe or a device the path itself.

    Links are followed, the mode of an existing file is kept, and temporary files of killed processes are removed.
    """
    with writing(path):
        place = Path(os.path.realpath(path))
        mode = place.stat().st_mode if place.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if mode is not None and not stat.S_ISREG(mode):
            yield path
            return
        remove_abandoned(place)
        with atomic_path(place) as temporary:
            yield temporary
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path` for a file that is not complete yet."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_END}")


def is_temporary(path: Path) -> bool:
    """Return whether the name of a file says that it is an unfinished file of `atomic_path`."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY_END)


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files that killed writers of `path` left beside it; those of living writers are locked."""
    start = f".{path.name}."
    with suppress(OSError):
        for file in path.parent.iterdir():
            if file.name.startswith(start) and is_temporary(file) and _is_abandoned(file):
                file.unlink(missing_ok=True)


def _is_abandoned(file: Path) -> bool:
    if fcntl is None or time.time() - file.stat().st_mtime < ABANDONED_SECONDS:
        return False
    fd = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk (fsync), if the platform supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover - platforms that cannot open folders
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
