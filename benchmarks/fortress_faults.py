"""Inject faults into the file operations of this process: a kill, a full disk, a read-only or a vanished folder.

`install(fault)` counts every operation that changes files below a folder: opening for writing, writing, renaming,
removing, truncating, making folders and flushing. At the chosen operation the fault happens. It is meant for a forked
process that ends afterwards: a fault cannot be uninstalled.
"""

import builtins
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

KILLED = 137
KINDS = ("kill", "full disk", "read-only", "vanished")
ERRORS = {"full disk": errno.ENOSPC, "read-only": errno.EROFS}
# What a full disk still allows.
FREE = ("rename", "remove", "rmdir")
WRITES = ("w", "a", "x", "+")
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass
class Fault:
    """A fault of one kind at the operation number `at`, counted from 1; `at=0` never happens and only counts."""

    folder: Path
    kind: str = "kill"
    at: int = 0
    gone: Path | None = None
    log: list[str] = field(default_factory=list)

    def step(self, operation: str, path: Any, torn: Callable[[], None] | None = None) -> None:
        """Count an operation on a path; at the chosen one, and for full and read-only disks after it, fail."""
        if not self._inside(path):
            return
        self.log.append(f"{operation} {Path(os.fsdecode(path)).name if not isinstance(path, int) else ''}")
        if not self.at or len(self.log) < self.at:
            return
        if self.kind == "kill":
            if torn is not None:
                torn()
            self._die()
        if self.kind == "vanished":
            if len(self.log) == self.at and self.gone is not None:
                shutil.rmtree(self.gone, ignore_errors=True)
            return
        if self.kind == "read-only" or operation not in FREE:
            code = ERRORS[self.kind]
            raise OSError(code, os.strerror(code), None if isinstance(path, int) else os.fsdecode(path))

    def _die(self) -> NoReturn:
        os._exit(KILLED)

    def _inside(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        text = os.path.abspath(os.fsdecode(path))
        return text.startswith(f"{self.folder}{os.sep}")


def install(fault: Fault) -> None:
    """Watch the file operations of this process from now on."""
    busy = [False]

    def step(operation: str, path: Any, torn: Callable[[], None] | None = None) -> None:
        if busy[0] or path is None:
            return
        busy[0] = True
        try:
            fault.step(operation, path, torn)
        finally:
            busy[0] = False

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if isinstance(path, int) or path is None:
                return
            if any(c in mode for c in WRITES) if isinstance(mode, str) else flags & FLAGS:
                step("open", path)
        elif event == "os.rename":
            step("rename", args[1])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
            step(event.removeprefix("os."), args[0])

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            half = memoryview(data).cast("B")
            step("write", self.fileno(), lambda: self._part(half[: len(half) // 2]))
            return super().write(data) or 0

        def _part(self, data: Any) -> None:
            super().write(data)

    original = io.open

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None,
        closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if not any(c in mode for c in WRITES):
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        both = "+" in mode
        buffered: Any = io.BufferedRandom(raw) if both else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    write, fsync = os.write, os.fsync

    def os_write(fd: int, data: Any) -> int:
        step("write", fd, lambda: (write(fd, bytes(data)[: len(data) // 2]), None)[1])
        return write(fd, data)

    def os_fsync(fd: Any) -> None:
        step("fsync", fd if isinstance(fd, int) else fd.fileno())
        fsync(fd)

    builtins.open = io.open = opened  # type: ignore[assignment]
    os.write, os.fsync = os_write, os_fsync  # type: ignore[assignment]
    sys.addaudithook(audit)
