"""The list of a Run's shards with size, hash and count of each file, appended line by line and chained by hashes."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from brinell.errors import RunError, error_text
from brinell.storage import writing
from brinell.untrusted import parse_json, read_plain

LIST = "checksums.jsonl"
SHARD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
NAME = re.compile(SHARD)
HASH = re.compile("[0-9a-f]{64}")
# No file of a Run is larger, and no shard has more rows.
LARGEST = 1 << 62
REMEDY = "Restore the folder from a copy, or evaluate into a new folder."


class FileSum(NamedTuple):
    """What is listed about a file: its size in bytes, its sha256, and how many rows or adversarials it has."""

    size: int
    sha256: str
    entries: int

    def refuse_other(self, path: Path, data: bytes) -> None:
        """Raise a RunError if the content of a file is not the listed content."""
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            got = f"{len(data):,} bytes" if len(data) != self.size else "other content of the same size"
            raise changed(path, f"{self.size:,} bytes and the sha256 {self.sha256[:16]}…", got)


class Listed(NamedTuple):
    """The files of one shard; `adversarials` is None if the shard has none."""

    rows: FileSum
    adversarials: FileSum | None


def changed(path: Path, expected: str, got: str) -> RunError:
    """Return the error for a file that is not as the Run lists it."""
    return RunError(expected=f"{path} as it was written, with {expected}", got=got, remedy=REMEDY)


@dataclass
class ShardList:
    """The listed shards of a Run, in the order in which they were written; `append_line` adds one.

    `chain` is the hash over all lines. `whole` is the size of all complete lines in bytes: a killed writer can leave
    an incomplete line behind them.
    """

    start: str
    entries: dict[str, Listed] = field(default_factory=dict)
    chain: str = ""
    whole: int = 0

    def __post_init__(self) -> None:
        self.chain = self.chain or self.start

    @property
    def stored(self) -> dict[str, Any]:
        """The entry `checksums` of the manifest: the start of the chain, its length and its end."""
        return {"start": self.start, "count": len(self.entries), "chain": self.chain}


def line_of(shard: str, listed: Listed, chain: str) -> tuple[bytes, str]:
    """Return the line for a shard, and the hash of the chain with this line."""
    body = json.dumps({"shard": shard, "rows": listed.rows, "adversarials": listed.adversarials}, sort_keys=True)
    link = hashlib.sha256(f"{chain}\n{body}".encode()).hexdigest()
    return f'{{"chain": "{link}", "shard": {body}}}\n'.encode(), link


def read_list(run: Path, stored: Mapping[str, Any], finished: bool) -> ShardList:
    """Return the list of a Run whose manifest has the entry `stored`; raise a RunError if list and manifest differ."""
    path, (start, count, chain) = run / LIST, _entry(run, stored)
    try:
        data = read_plain(path)
    except FileNotFoundError:
        data = b""
    except (OSError, ValueError) as error:
        raise changed(path, "the list of its shards", error_text(error)) from error
    entries: dict[str, Listed] = {}
    lines, known = data.split(b"\n"), [start]
    for line in lines[:-1]:
        shard, listed = _parse(path, line)
        expected, link = line_of(shard, listed, known[-1])
        if expected != line + b"\n" or shard in entries:
            raise changed(path, "a chain of hashes", f"a line that does not continue it, for the shard {shard}")
        entries[shard] = listed
        known.append(link)
    found = ShardList(start, entries, known[-1], len(data) - len(lines[-1]))
    if count >= len(known) or known[count] != chain or (finished and len(entries) > count):
        raise changed(path, f"{count} shards, as the manifest says", f"{len(entries)} shards, or those of another Run")
    return found


def append_line(run: Path, known: ShardList, shard: str, listed: Listed) -> None:
    """Append a shard to the list, on disk and in memory; a kill leaves the old list or the new one."""
    line, link = line_of(shard, listed, known.chain)
    with writing(run / LIST), os.fdopen(os.open(run / LIST, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
        file.truncate(known.whole)  # removes the incomplete line of a killed writer
        file.seek(known.whole)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    known.entries[shard] = listed
    known.chain, known.whole = link, known.whole + len(line)


def _entry(run: Path, stored: Mapping[str, Any]) -> tuple[str, int, str]:
    start, count, chain = (stored.get(key) for key in ("start", "count", "chain"))
    texts = isinstance(start, str) and isinstance(chain, str)
    if not texts or not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < LARGEST:
        raise RunError(
            expected="start, count and chain in the entry checksums of manifest.json",
            got=f"{str(dict(stored))[:60]} in {run}",
            remedy=REMEDY,
        )
    return str(start), count, str(chain)


def _parse(path: Path, line: bytes) -> tuple[str, Listed]:
    try:
        body = parse_json(line)["shard"]
        shard, rows, adversarials = (body[key] for key in ("shard", "rows", "adversarials"))
        if not isinstance(shard, str) or not NAME.fullmatch(shard):
            raise ValueError(f"the name {repr(shard)[:60]}")
        return shard, Listed(_sum(rows), None if adversarials is None else _sum(adversarials))
    except (ValueError, KeyError, TypeError) as error:
        raise changed(path, "one shard per line", f"a damaged line ({type(error).__name__})") from error


def _sum(values: Any) -> FileSum:
    size, digest, count = values
    numbers = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < LARGEST for n in (size, count))
    if not numbers or not isinstance(digest, str) or not HASH.fullmatch(digest):
        raise ValueError("no size, sha256 and count")
    return FileSum(size, digest, count)
