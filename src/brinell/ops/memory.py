"""The memory of a process on a CPU: freed memory is kept for the next attack step."""

import ctypes
from contextlib import suppress
from functools import cache

# Settings of mallopt in the C library of Linux: how much free memory it keeps, and from which size on an array has
# memory of its own, which goes back to the system at once.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT, SHARED = 256 << 20, 32 << 20


@cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 256 MiB that were freed; other systems ignore this.

    An attack step frees and allocates the same tensors again and again. Getting them from the system every time, with
    zeros in them, took a fifth of the time of FAB. The setting holds for the whole process.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, KEPT)
        library.mallopt(_MMAP_THRESHOLD, SHARED)
