"""Keep downloaded files in a cache: each file is complete and checked, or absent."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from brinell.errors import BrinellError, InputError, StorageError
from brinell.fetch.download import BLOCK, Progress, claimed, discard, forget_version, part_of, transfer
from brinell.storage import is_disk_error, make_folder, storage_error, write_output
from brinell.untrusted import open_plain

PAGE = (b"<!doctype html", b"<html", b"<head", b"<?xml")
NO = ("", "0", "false", "no", "off")
HEAD_BYTES, BYTE_ORDER, SHOWN = 512, b"\xef\xbb\xbf", 16


@dataclass(frozen=True)
class Wanted:
    """A file to download: what it is in words, its path on disk, its URLs, and its digest if known.

    `digest` is "sha256:…" or "md5:…". `mirrored` is the file's name on a mirror. Errors have the class `error`.
    """

    what: str
    path: Path
    urls: tuple[str, ...]
    mirrored: str
    digest: str | None = None
    error: type[BrinellError] = InputError
    packaged: bool = False
    """Whether the file is part of an installed package: nothing is written beside it."""

    @property
    def lock(self) -> Path:
        """The file that stores the sha256 of the first download."""
        return self.path.with_name(self.path.name + ".sha256")


def offline() -> bool:
    """Return whether downloads are forbidden: BRINELL_OFFLINE is set, and not to 0, false, no or off."""
    return os.environ.get("BRINELL_OFFLINE", "").strip().lower() not in NO


def sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    return _hash("sha256", path)


def _hash(kind: str, path: Path) -> str:
    # md5 detects damage, not forgery; some publishers give nothing else.
    h = hashlib.new(kind, usedforsecurity=kind != "md5")
    with open_plain(path) as f:
        while block := f.read(BLOCK):
            h.update(block)
    return h.hexdigest()


def refuse_page(path: Path, what: str, error: type[BrinellError]) -> None:
    """Raise an error for an empty file or a web page, which hosts send if a file is gone or requested too often."""
    with open_plain(path) as f:
        start = f.read(HEAD_BYTES).removeprefix(BYTE_ORDER).lstrip().lower()
    if not start or start.startswith(PAGE):
        raise error(
            expected=what,
            got="a web page instead of a file" if start else "an empty file",
            remedy="The host may limit downloads: try again later, or download the file by hand.",
        )


def obtain(wanted: Wanted, inspect: Callable[[Path], None], progress: Progress | None = None) -> Path:
    """Return the path of the file `wanted`; download it if it is absent, and check it in any case.

    Method: sources are tried in turn, the mirror BRINELL_MIRROR first; BRINELL_OFFLINE forbids downloads. `inspect`
    gets the path of every new file before it is accepted, and raises an error to refuse it. A file without a digest is
    trusted the first time and must not change afterwards.
    """
    path = wanted.path
    if not path.exists():
        make_folder(path.parent)
        _download(wanted, inspect, progress)
    elif _pinned(wanted) is None:
        # Put there by hand: trusted from now on, if it passes inspection.
        inspect(path)
        _pin(wanted)
    else:
        _compare(path, wanted)
        if (
            not wanted.packaged and not wanted.lock.exists()
        ):  # of a process that was killed after it moved the file to its place
            with suppress(StorageError):  # the folder may be read-only: the file is right
                _pin(wanted)
    return path


def _pinned(wanted: Wanted) -> str | None:
    """Return the digest the file must have: the published digest, else the digest of the first download, else None."""
    if wanted.digest is not None or not wanted.lock.exists():
        return wanted.digest
    return "sha256:" + wanted.lock.read_text().strip()


def _pin(wanted: Wanted) -> None:
    write_output(wanted.lock, f"{sha256(wanted.path)}\n")


def _compare(got: Path, wanted: Wanted) -> None:
    pinned = _pinned(wanted)
    if pinned is None:
        return
    kind, _, digest = pinned.partition(":")
    actual = _hash(kind, got)
    if actual != digest:
        raise wanted.error(
            expected=f"{wanted.what} with {kind} {digest[:SHOWN]}…",
            got=f"a file with {kind} {actual[:SHOWN]}…",
            remedy=f"The file changed or is damaged. To download anew, delete {wanted.path} and {wanted.lock.name}.",
        )


def _download(wanted: Wanted, inspect: Callable[[Path], None], progress: Progress | None) -> None:
    troubles, mirror = [], os.environ.get("BRINELL_MIRROR", "").rstrip("/")
    urls = (*([f"{mirror}/{wanted.mirrored}"] if mirror else []), *wanted.urls)
    for url in () if offline() else urls:
        with claimed(part_of(wanted.path, url)) as part:
            try:
                transfer(url, part, progress)
                _keep(part, wanted, inspect)
                return
            except StorageError:
                raise
            except BrinellError as error:
                discard(part)
                troubles.append(f"{error.got} instead of {error.expected}")
            except (OSError, HTTPException, ValueError) as error:
                if isinstance(error, OSError) and is_disk_error(error):
                    raise storage_error(error, part) from error
                troubles.append(f"{_without_keys(url)}: {error or type(error).__name__}")
    by_hand = f"download {' or '.join(wanted.urls)} by hand and put it at {wanted.path}."
    if offline():
        raise wanted.error(
            expected=f"{wanted.what} at {wanted.path}",
            got="no such file, and downloads are off since BRINELL_OFFLINE is set",
            remedy=f"Unset BRINELL_OFFLINE, or {by_hand}",
        )
    raise wanted.error(
        expected=f"{wanted.what} from one of its sources",
        got="; ".join(troubles),
        remedy=f"Try again later (an interrupted download resumes), or {by_hand}",
    )


def _without_keys(url: str) -> str:
    """Return a URL without user, password and query: the address of a mirror may hold keys."""
    scheme, _, rest = url.partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _keep(part: Path, wanted: Wanted, inspect: Callable[[Path], None]) -> None:
    """Check the downloaded file, then move it to its path in one step."""
    refuse_page(part, wanted.what, wanted.error)
    _compare(part, wanted)
    inspect(part)
    forget_version(part)  # first: a kill after the renaming would leave it behind
    part.replace(wanted.path)
    _pin(wanted)
