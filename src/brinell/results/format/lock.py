"""A lock on a Run's folder: at most one process writes to the folder."""

import os
from pathlib import Path

from brinell.errors import RunError
from brinell.storage import make_folder, writing

try:
    import fcntl
except ImportError:  # pragma: no cover - platforms without flock
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class Lock:
    """An exclusive lock on a folder; where flock exists, the system releases the lock when the process dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._flock = fcntl is not None
        with writing(folder):
            self._fd = _flock(self._path) if self._flock else _exclusive(self._path)
            try:
                os.ftruncate(self._fd, 0)
                os.write(self._fd, str(os.getpid()).encode())
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Release the lock; call this method only once."""
        os.close(self._fd)
        if not self._flock:
            self._path.unlink(missing_ok=True)


def locked_folder(path: Path) -> Lock:
    """Create the folder if it is absent, lock it, and return the lock."""
    make_folder(path)
    return Lock(path)


def _flock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise _taken(path, "Wait until this process ends, or choose another folder with out= (--out).") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _exclusive(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise _taken(path, f"Wait until this process ends. If it no longer runs, delete {path}.") from None


def _taken(path: Path, remedy: str) -> RunError:
    owner = path.read_text(errors="replace").strip() or "unknown"
    return RunError(
        expected=f"to be the only writer of {path.parent}", got=f"a lock held by process {owner}", remedy=remedy
    )
