"""Check a zip archive before anything is unpacked: how many files it has, how large they are, how they are packed."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from brinell.untrusted.limits import allowed_for, open_plain, refuse_large

MOST_FILES = 100_000
# The record at the end of an archive, and the longest comment behind it. Bytes 12 to 15 are the size of the directory.
END, END_BYTES, COMMENT_BYTES = b"PK\x05\x06", 22, 1 << 16
# A large archive has another such record and its place before it.
LARGE, LARGE_BYTES, PLACE_BYTES = b"PK\x06\x07", 56, 20
# An entry of the directory has at least this many bytes.
ENTRY_BYTES = 46
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1


@contextmanager
def open_zip(path: str | os.PathLike[str], most_files: int = MOST_FILES) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive whose files are packed as usual, are not encrypted, and together have a reasonable size.

    Any defect raises a ValueError or an OSError, also while the archive is read.
    """
    with open_plain(path) as file:
        _refuse_many(file, most_files)
        try:
            with zipfile.ZipFile(file) as archive:
                _refuse_unusual(archive, most_files)
                total = sum(entry.file_size for entry in archive.infolist())
                refuse_large(total, allowed_for(os.fstat(file.fileno())), "the unpacked archive")
                yield archive
        # What zipfile raises for damaged archives, while it opens or unpacks them.
        except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"a damaged zip archive: {error}") from error


def _refuse_many(file: IO[bytes], most: int) -> None:
    """Raise a ValueError if the directory of the archive is large: `ZipFile` reads all of it at once."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END_BYTES - COMMENT_BYTES - LARGE_BYTES - PLACE_BYTES))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(END)
    directory = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    if at >= LARGE_BYTES + PLACE_BYTES and tail[at - PLACE_BYTES :].startswith(LARGE):
        record = tail[at - PLACE_BYTES - LARGE_BYTES :]
        directory = max(directory % 0xFFFFFFFF, int.from_bytes(record[40:48], "little"))
    if directory > most * 4 * ENTRY_BYTES:
        raise ValueError(f"an archive with a directory of {directory:,} bytes")


def _refuse_unusual(archive: zipfile.ZipFile, most: int) -> None:
    entries = archive.infolist()
    if len(entries) > most:
        raise ValueError(f"an archive of {len(entries):,} files, more than {most:,}")
    for entry in entries:
        if entry.compress_type not in PACKINGS or entry.flag_bits & ENCRYPTED:
            raise ValueError(f"{entry.filename!r} is encrypted or packed in an unknown way")
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            raise ValueError(f"{entry.filename!r} has two different sizes")
