"""How much memory a file may cost, and how a file is opened: plain files only, and no more bytes than allowed."""

import os
import stat
from pathlib import Path
from typing import IO

# A file may need this much memory in any case, or `FACTOR` times the space that it takes on the disk.
ALWAYS, FACTOR = 1 << 28, 100
# The disk counts in blocks of this size (st_blocks), whatever the file system.
DISK_BLOCK = 512


def open_plain(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a plain file for reading; raise an OSError for folders, pipes and devices, without waiting for them.

    >>> open_plain("/dev/zero")
    Traceback (most recent call last):
    OSError: /dev/zero is a device, not a plain file
    """
    # A pipe without a writer would block a plain open forever.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{os.fspath(path)} is a {_kind(mode)}, not a plain file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def plain_file(path: str | os.PathLike[str]) -> Path:
    """Return the path if it leads to a plain file that can be read, else raise an OSError."""
    with open_plain(path):
        return Path(path)


def allowed_bytes(path: str | os.PathLike[str]) -> int:
    """Return how many bytes the content of a file may take in memory: 256 MiB, or 100 times its space on the disk.

    Real data are seldom compressed more than tenfold. The holes of a sparse file take no space.
    """
    return allowed_for(os.stat(path))


def allowed_for(status: os.stat_result) -> int:
    """Return the bytes that the content of a file with this status may take in memory."""
    on_disk = min(status.st_size, getattr(status, "st_blocks", status.st_size) * DISK_BLOCK)
    return max(ALWAYS, FACTOR * on_disk)


def refuse_large(size: int, allowed: int, what: str) -> None:
    """Raise a ValueError if `size` bytes are more than allowed; `what` names the content in the message.

    >>> refuse_large(10**10, 10**6, "the array x")
    Traceback (most recent call last):
    ValueError: the array x takes 10,000,000,000 bytes, more than the 1,000,000 that a file of this size may take
    """
    if size > allowed:
        raise ValueError(f"{what} takes {size:,} bytes, more than the {allowed:,} that a file of this size may take")


def read_plain(path: str | os.PathLike[str], largest: int | None = None) -> bytes:
    """Return the content of a plain file; raise a ValueError if it has more than `largest` bytes or is sparse."""
    with open_plain(path) as file:
        status = os.fstat(file.fileno())
        if largest is not None and status.st_size > largest:
            raise ValueError(f"the file has {status.st_size:,} bytes, more than {largest:,}")
        refuse_large(status.st_size, allowed_for(status), "the content of a sparse file")
        # One byte more than expected, to notice a file that grows meanwhile.
        data = file.read(status.st_size + 1)
    if len(data) > status.st_size:
        raise ValueError("the file grew while it was read")
    return data


def _kind(mode: int) -> str:
    return {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}.get(stat.S_IFMT(mode), "device")
