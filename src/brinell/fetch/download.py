"""Download one file over HTTP, and resume after a broken connection."""

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
    import fcntl as fcntl
except ImportError:  # pragma: no cover - platforms without flock
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the total, None where the server does not say."""

BLOCK, TRIES, TIMEOUT = 1 << 20, 3, 30.0
PARTIAL, RANGE_NOT_SATISFIABLE = 206, 416


def part_of(path: Path, url: str) -> Path:
    """Return the path of the partial file for one URL; partial files of different URLs are never mixed."""
    return path.with_name(f".{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:12]}.part")


def _tag(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def discard(part: Path) -> None:
    """Remove a partial file and the file with its version (ETag or date)."""
    part.unlink(missing_ok=True)
    forget_version(part)


def forget_version(part: Path) -> None:
    """Remove the file with the version of a partial file."""
    _tag(part).unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(part: Path) -> Iterator[Path]:
    """Lock the partial file and yield its path; if another process holds the lock, yield a private path."""
    fd = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    claimed_part = part
    try:
        try:
            if fcntl is None:
                raise BlockingIOError
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claimed_part = part.with_name(f"{part.name}.{os.getpid()}")
        yield claimed_part
    finally:
        if claimed_part != part or (part.exists() and part.stat().st_size == 0):
            discard(claimed_part)
        os.close(fd)


def transfer(url: str, part: Path, progress: Progress | None = None) -> None:
    """Download the file at `url` to `part`; try three times, resuming after a broken connection, then raise."""
    for attempt in range(TRIES):
        try:
            if _stream(url, part, progress):
                return
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException):
            if attempt == TRIES - 1:
                raise
    raise ConnectionError(f"the connection broke {TRIES} times before the file was complete")


def _request(url: str, part: Path) -> tuple[urllib.request.Request, int]:
    """Return a request for the bytes that `part` lacks, and how many bytes `part` has (0 if its version is unknown)."""
    have = part.stat().st_size if part.exists() and _tag(part).exists() else 0
    headers = {"User-Agent": "brinell"}
    if have:
        # If the file has changed, the server sends the whole new one.
        headers |= {"Range": f"bytes={have}-", "If-Range": _tag(part).read_text()}
    return urllib.request.Request(url, headers=headers), have


def _stream(url: str, part: Path, progress: Progress | None) -> bool:
    request, have = _request(url, part)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE or not have:
            raise
        # The file is complete; its digest is checked later.
        error.close()
        return True
    with answer:
        return _receive(answer, part, have, progress)


def _receive(answer: Any, part: Path, have: int, progress: Progress | None) -> bool:
    resumed = answer.status == PARTIAL
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
    if not resumed:
        # Emptied, not removed: the lock is on this file.
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
