"""Pack a Run as one file for submission, with a hash of each part and reproducible bytes; unpack such files safely."""

import hashlib
import json
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brinell.errors import RunError, error_text
from brinell.results.format import files
from brinell.results.format.checksums import LIST, SHARD
from brinell.results.format.manifest import MANIFEST
from brinell.results.format.shards import Shards
from brinell.results.run import Run
from brinell.storage import output_path
from brinell.untrusted import open_plain, open_zip, parse_json

INDEX, RECORD, FORMAT = "bundle.json", "record.json", 1
ALLOWED = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(RECORD)}|{re.escape(LIST)}|"
    rf"{files.ROWS_FOLDER}/{SHARD}{re.escape(files.ROWS_END)}|"
    rf"{files.ADVERSARIALS_FOLDER}/{SHARD}{re.escape(files.ADVERSARIALS_END)}"
)
# The largest file of a bundle, the total of all, and the largest JSON file, which is read into memory.
MEMBER_BYTES, TOTAL_BYTES, JSON_BYTES = 1 << 31, 1 << 36, 1 << 26
MEMBERS = 100_000
BLOCK = 1 << 20
# The earliest time of a zip file: the bytes of a bundle do not depend on when it is made.
EPOCH = (1980, 1, 1, 0, 0, 0)


def members(run: Path) -> list[str]:
    """Return the names of a Run's files, sorted: manifest, list, rows, and the adversarials that rows refer to."""
    shards = Shards.open(run)
    referenced = set(shards.all_rows(["adv_shard"])["adv_shard"].drop_null().unique().to_pylist())
    referenced |= set() if shards.listed is None else set(shards.with_adversarials())
    paths = [files.rows_file(run, shard) for shard in shards.names]
    paths += [files.adversarials_file(run, shard) for shard in referenced]
    listed = [LIST] if (run / LIST).is_file() and shards.listed is not None else []
    return sorted([MANIFEST, *listed, *(path.relative_to(run).as_posix() for path in paths)])


def digest(run: Path) -> str:
    """Return one sha256 over the names and contents of a Run's files; record and analyses are left out.

    >>> len(digest(Path("tests/results/golden_run_v1")))
    64
    """
    return root({name: _sha256(run / name) for name in members(run)})


def root(hashes: Mapping[str, str]) -> str:
    """Return one sha256 over all file names and hashes (a dict from name to hash), whatever the order of the dict.

    >>> root({"b": "02", "a": "01"}) == root({"a": "01", "b": "02"}) != root({"a": "02", "b": "01"})
    True
    """
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def pack(run: Run, out: str | os.PathLike[str]) -> str:
    """Pack a finished Run, its record if any, and an index with each file's sha256 into `out`; return the root hash.

    Method: a zip file without compression, names sorted, no times: equal Runs give equal bytes.
    """
    _refuse_unfit(run)
    run.shards.check_hashes()
    names = [*members(run.path), *([RECORD] if (run.path / RECORD).exists() else [])]
    hashes = {name: _sha256(run.path / name) for name in names}
    listed = [{"name": n, "bytes": (run.path / n).stat().st_size, "sha256": hashes[n]} for n in sorted(names)]
    large = [str(f["name"]) for f in listed if int(str(f["bytes"])) > MEMBER_BYTES]
    if large:
        raise RunError(
            expected=f"files of at most {MEMBER_BYTES:,} bytes",
            got=f"{large[0]}, which is larger",
            remedy="Evaluate parts of the data into separate Runs and submit each.",
        )
    index = {"format": FORMAT, "root": root(hashes), "files": listed}
    place = Path(out)
    with output_path(place) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry(INDEX), json.dumps(index, indent=1) + "\n")
        for name in sorted(names):
            _add(archive, run.path / name, name)
    return str(index["root"])


def is_bundle(path: Path) -> bool:
    """Return whether a file starts like a bundle: a zip file whose first member is an index."""
    if not path.is_file():
        return False
    with open_plain(path) as file:
        head = file.read(30 + len(INDEX))
    return head[:4] == b"PK\x03\x04" and head[30:] == INDEX.encode()


@contextmanager
def opened(bundle: str | os.PathLike[str]) -> Iterator[Run]:
    """Unpack a bundle into a temporary folder and yield its Run; the folder is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="brinell-bundle-") as folder:
        yield unpack(bundle, folder)


def unpack(
    bundle: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    largest: int = MEMBER_BYTES,
    total: int = TOTAL_BYTES,
) -> Run:
    """Unpack a bundle into an empty folder and return its Run; raise a RunError if a check fails.

    Checks: the index lists exactly the members, and every member has the name of a file of a Run. No member is larger
    than `largest` bytes, and all together have at most `total` bytes. No member is compressed, encrypted or a link.
    Sizes, sha256 and root hash are as the index says.
    """
    path, target = Path(bundle), Path(folder)
    try:
        with open_zip(path, MEMBERS) as archive:
            listed = _index(archive, path, largest, total)
            for name, (size, wanted) in listed.items():
                got = _extract(archive, name, target / name, size)
                if got != wanted:
                    raise _refused(path, f"{name} with sha256 {wanted[:16]}…", f"{got[:16]}…: it was changed")
    except (OSError, ValueError, zlib.error) as error:
        raise _refused(path, "a complete file", error_text(error)) from error
    return Run.open(target)


def _refuse_unfit(run: Run) -> None:
    if not run.finished:
        raise RunError(
            expected="a finished Run",
            got=f"{run.path}, which is not finished",
            remedy="Finish the Run with brinell evaluate --resume.",
        )
    if not run.images:
        raise RunError(
            expected="a Run with its adversarials, so that others can check them",
            got=f"{run.path}, evaluated with images=False (--no-images)",
            remedy="Evaluate into another folder with the same arguments, but images=True (without --no-images).",
        )
    missing = [n for n in members(run.path) if not (run.path / n).is_file()]
    if missing:
        raise RunError(
            expected="a complete Run", got=f"{run.path} without {missing[0]}", remedy="Restore the file from a copy."
        )


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    return entry


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    entry = _entry(name)
    entry.file_size = path.stat().st_size
    with open(path, "rb") as source, archive.open(entry, "w") as sink:
        while block := source.read(BLOCK):
            sink.write(block)


def _sha256(path: Path) -> str:
    h = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            h.update(block)
    return h.hexdigest()


def _json(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    names = [entry.filename for entry in archive.infolist()]
    if names.count(INDEX) != 1:
        raise _refused(path, f"one index {INDEX}", f"{names.count(INDEX)} indexes")
    _refuse_entry(path, archive.getinfo(INDEX), JSON_BYTES)
    try:
        index = parse_json(archive.read(INDEX))
        # Everything in the index is read here, so that one error covers every defect.
        listed = {str(f["name"]): (int(f["bytes"]), str(f["sha256"])) for f in index["files"]}
        if index["format"] != FORMAT or len(listed) != len(index["files"]):
            raise ValueError(f"format {index['format']}, not {FORMAT}, or a file that is listed twice")
        return {"root": str(index["root"]), "files": listed}
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise _refused(path, "a readable index", error_text(error)) from error


def _index(archive: zipfile.ZipFile, path: Path, largest: int, total: int) -> dict[str, tuple[int, str]]:
    """Check the members against the index without reading them; return size and sha256 of every member by name."""
    entries = archive.infolist()
    if len(entries) > MEMBERS:
        raise _refused(path, f"at most {MEMBERS:,} files", f"{len(entries):,} files")
    for entry in entries:
        if entry.filename != INDEX and not ALLOWED.fullmatch(entry.filename):
            raise _refused(path, "only files that belong to a Run", repr(entry.filename)[:100])
        _refuse_entry(path, entry, JSON_BYTES if entry.filename.endswith(".json") else largest)
    # Nothing is compressed, so more bytes than the file has means that members share their bytes.
    total = min(total, path.stat().st_size)
    if sum(entry.file_size for entry in entries) > total:
        raise _refused(path, f"at most {total:,} bytes together", f"{sum(e.file_size for e in entries):,} bytes")
    index = _json(archive, path)
    listed: dict[str, tuple[int, str]] = index["files"]
    names = [entry.filename for entry in entries if entry.filename != INDEX]
    twice = sorted(n for n, count in Counter(names).items() if count > 1)
    for what, wrong in (
        ("every file once", twice),
        ("every file of the index", sorted(set(listed) - set(names))),
        ("no file but those of the index", sorted(set(names) - set(listed))),
        (f"a {MANIFEST}", [] if MANIFEST in listed else [MANIFEST]),
    ):
        if wrong:
            raise _refused(path, what, f"a bundle where this does not hold for {wrong[0]!r}")
    for entry in entries:
        if entry.filename != INDEX and entry.file_size != listed[entry.filename][0]:
            wanted = f"{entry.filename} of {listed[entry.filename][0]:,} bytes"
            raise _refused(path, wanted, f"{entry.file_size:,} bytes")
    if root({name: sha for name, (_, sha) in listed.items()}) != index["root"]:
        raise _refused(path, "hashes that give the root hash of the index", "other hashes: the index was changed")
    return listed


def _refuse_entry(path: Path, entry: zipfile.ZipInfo, largest: int) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.file_size > largest:
        raise _refused(path, f"{entry.filename} of at most {largest:,} bytes", f"{entry.file_size:,} bytes")
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise _refused(path, "files that are not compressed", f"{entry.filename}, which is compressed")
    if entry.flag_bits & 1 or kind not in (0, stat.S_IFREG):
        raise _refused(path, "plain files", f"{entry.filename}, which is encrypted or no file")


def _extract(archive: zipfile.ZipFile, name: str, target: Path, size: int) -> str:
    """Write one member to `target`, at most `size` bytes, and return its sha256."""
    target.parent.mkdir(exist_ok=True, parents=True)
    h, remaining = hashlib.sha256(), size
    with archive.open(name) as source, open(target, "xb") as sink:
        while remaining and (block := source.read(min(BLOCK, remaining))):
            h.update(block)
            sink.write(block)
            remaining -= len(block)
    return h.hexdigest()


def _refused(path: Path, expected: str, got: str) -> RunError:
    return RunError(
        expected=f"a bundle with {expected}",
        got=f"{got}, in {path.name}",
        remedy="The bundle is refused: ask for a new one, made with brinell submit.",
    )
