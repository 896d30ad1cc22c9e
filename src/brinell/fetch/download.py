"""One file over HTTP, taken up again where a connection broke."""

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # pragma: no cover - platforms without flock
    fcntl = None  # type: ignore[assignment]

__all__ = ["Progress", "claimed", "discard", "fcntl", "part_of", "transfer"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and in all, None where the server does not say."""

BLOCK, TRIES, PATIENCE = 1 << 20, 3, 30.0
PARTIAL, NOTHING_LEFT = 206, 416


def part_of(path: Path, url: str) -> Path:
    """Where what arrived from this source waits until it is whole: never mixed with another source's."""
    return path.with_name(f".{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:12]}.part")


def _tag(part: Path) -> Path:
    """Which version of the file the part belongs to, as the server names it."""
    return part.with_name(part.name + ".tag")


def discard(part: Path) -> None:
    """Removes a part and all that belongs to it."""
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(part: Path) -> Iterator[Path]:
    """The part for this process alone; one of its own while another process writes the shared one."""
    fd = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    mine = part
    try:
        try:
            if fcntl is None:
                raise BlockingIOError
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mine = part.with_name(f"{part.name}.{os.getpid()}")
        yield mine
    finally:
        if mine != part or (part.exists() and part.stat().st_size == 0):
            discard(mine)
        os.close(fd)


def transfer(url: str, part: Path, progress: Progress | None = None) -> None:
    """Fetches until all has arrived; after a cut it goes on where it was, a few times; then an OSError."""
    for attempt in range(TRIES):
        try:
            if _stream(url, part, progress):
                return
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException):
            if attempt == TRIES - 1:
                raise
    raise ConnectionError(f"the connection was cut {TRIES} times")


def _request(url: str, part: Path) -> tuple[urllib.request.Request, int]:
    """A request for what is missing; for everything where the version of what is here is not known."""
    have = part.stat().st_size if part.exists() and _tag(part).exists() else 0
    headers = {"User-Agent": "brinell"}
    if have:
        # If the file has changed meanwhile, the server sends all of the new one.
        headers |= {"Range": f"bytes={have}-", "If-Range": _tag(part).read_text()}
    return urllib.request.Request(url, headers=headers), have


def _stream(url: str, part: Path, progress: Progress | None) -> bool:
    """One connection; whether all has arrived."""
    request, have = _request(url, part)
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != NOTHING_LEFT or not have:
            raise
        # All of it is here already; the check of the whole will tell.
        error.close()
        return True
    with answer:
        return _receive(answer, part, have, progress)


def _receive(answer: Any, part: Path, have: int, progress: Progress | None) -> bool:
    goes_on = answer.status == PARTIAL
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
    if not goes_on:
        # Emptied, not removed: the lock is on this very file.
        part.write_bytes(b"")
        _tag(part).unlink(missing_ok=True)
        have = 0
        if version is not None and not version.startswith("W/"):
            _tag(part).write_text(version)
    length = answer.headers.get("Content-Length")
    total = None if length is None else have + int(length)
    with part.open("ab") as f:
        while block := answer.read(BLOCK):
            f.write(block)
            have += len(block)
            if progress is not None:
                progress(have, total)
    return total is None or have >= total
