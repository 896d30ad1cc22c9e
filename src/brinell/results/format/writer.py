"""The only writer of a Run's folder.

Layout: ``manifest.json``, ``checksums.jsonl``, ``rows/NAME.parquet``, ``adversarials/NAME.safetensors``. A shard's
adversarials are written before the rows that refer to them, and the rows before the line that lists the shard: a
process killed at any moment loses at most the shard it was writing.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import InputError, RunError
from brinell.results.format import files
from brinell.results.format.checksums import LIST, Listed, ShardList, append_line
from brinell.results.format.lock import LOCK, Lock, locked_folder
from brinell.results.format.manifest import (
    CHECKSUMS,
    MANIFEST,
    SEAL,
    Manifest,
    decode,
    differences,
    encode,
    material,
    now,
    seal,
)
from brinell.results.format.schema import Evidence, conform, counted, is_evidence
from brinell.results.format.shards import Shards
from brinell.storage import is_temporary, make_folder, write_atomic, writing

FIXED = ("schema_version", "identity", "created", CHECKSUMS, SEAL)
# Of what differs from the stored evaluation, an error shows this many fields with this many characters each.
FIELDS_SHOWN, SHOWN = 12, 100
DIGEST = re.compile("[0-9a-f]{64}")


class Writer:
    """The only writer of a Run; it appends rows and adversarials until it is closed.

    >>> import tempfile
    >>> from brinell.results import ROWS, Run, new_manifest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Writer.create(folder, new_manifest({"seed": 0}, {})) as writer:
    ...         writer.append(ROWS.empty_table())
    ...         writer.update(finished=True)
    ...     Run.open(folder).finished
    True
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], lock: Lock, listed: ShardList | None) -> None:
        self.path = path
        self._listed = listed
        self._manifest = dict(manifest)
        self._lock: Lock | None = lock
        self._count = _last_number(path)
        for folder in (files.ROWS_FOLDER, files.ADVERSARIALS_FOLDER):
            make_folder(path / folder)

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> "Writer":
        """Return the writer of a new Run; the folder `path` is absent, is empty, or holds a Run without rows."""
        path, listed = Path(path), ShardList(start=secrets.token_hex(32))
        manifest = _sealed(manifest, listed)
        refuse_used(path)
        made = not path.exists()
        lock = locked_folder(path)
        try:
            refuse_used(path)  # again, now that the lock is held
            _clear(path)
            write_atomic(path / MANIFEST, encode(manifest))
            return cls(path, manifest, lock, listed)
        except BaseException:
            lock.release()
            _undo(path, made)
            raise

    @classmethod
    def resume(cls, path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> "Writer":
        """Remove unfinished files of the Run in `path` and return its writer.

        Raise a RunError if `manifest` has another identity than the Run.
        """
        path = Path(path)
        refuse_other(path, decode(path), manifest)
        lock = Lock(path)
        try:
            stored = decode(path)
            shards = Shards.open(path, stored)
            _sweep(shards, stored.finished)
            writer = cls(path, stored.raw, lock, shards.listed)
            writer._adopt(shards)
            writer._note_environment(manifest.get("environment", {}))
            return writer
        except BaseException:
            lock.release()
            raise

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as stored: a plain JSON object."""
        return dict(self._manifest)

    @property
    def stored(self) -> Manifest:
        """The manifest as stored: a `Manifest` object."""
        return Manifest.read(self._manifest)

    def append(
        self, table: pa.Table, adv_ids: npt.NDArray[np.int64] | None = None, adv_x: npt.NDArray[Any] | None = None
    ) -> None:
        """Store rows and their adversarials as one shard.

        `adv_ids[k]` is the sample id of `adv_x[k]`, in the order of the rows. The ids are matched in order to the rows
        of attacks and counterexamples that are broken and verified. If an id has no such row, the ids are matched to
        all of these rows that are broken.
        """
        self._check_open()
        table, adversarials = conform(table), _pair(adv_ids, adv_x)
        if table.num_rows == 0:
            return
        finished = self.stored.finished
        if finished:  # a kill from here on leaves an unfinished Run
            self.update(finished=False)
        self._count += 1
        shard = f"{self._count:08d}-{secrets.token_hex(4)}"
        table = _refer(table, adversarials.ids, shard)
        images = None
        if len(adversarials.ids):
            images = files.write_adversarials(files.adversarials_file(self.path, shard), adversarials)
        self._list(shard, Listed(files.write_rows(files.rows_file(self.path, shard), table), images))
        if finished:
            self.update(finished=True)

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest that become known later, such as finished, wall_seconds, checks and notes."""
        self._check_open()
        fixed = sorted(set(fields) & set(FIXED))
        if fixed:
            remedy = "Start a new Run with Writer.create to change these fields."
            got = f"{', '.join(fixed)}, which cannot change"
            raise InputError(expected="fields of the manifest that may change", got=got, remedy=remedy)
        manifest = _sealed({**self._manifest, **fields}, self._listed)
        write_atomic(self.path / MANIFEST, encode(manifest))
        self._manifest = manifest

    def close(self) -> None:
        """Release the lock; closing twice is harmless."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _list(self, shard: str, sums: Listed) -> None:
        if self._listed is not None:  # a Run of an earlier version has no list
            append_line(self.path, self._listed, shard, sums)

    def _adopt(self, shards: Shards) -> None:
        """List the shard that a killed writer wrote but did not list, after reading it completely."""
        for shard in shards.unlisted:
            rows, images = files.rows_file(self.path, shard), files.adversarials_file(self.path, shard)
            count, sums = files.read_rows(rows).num_rows, None
            if images.exists():
                sums = files.file_sum(images, len(files.read_adversarials(images).ids))
            self._list(shard, Listed(files.file_sum(rows, count), sums))

    def _check_open(self) -> None:
        if self._lock is None:
            raise RunError(
                expected="an open Writer", got=f"a closed Writer of {self.path}", remedy="Open it with Writer.resume."
            )

    def _note_environment(self, environment: Mapping[str, Any]) -> None:
        stored = self.stored
        if differences(stored.last_environment, environment):
            self.update(resumed=[*stored.resumed, {"at": now(), "environment": dict(environment)}])


def _pair(ids: npt.NDArray[np.int64] | None, x: npt.NDArray[Any] | None) -> files.Adversarials:
    """Return `Adversarials` of `ids` and `x`; raise an InputError if their lengths differ or `x` is not float32."""
    ids = np.zeros(0, np.int64) if ids is None else np.asarray(ids, np.int64)
    x = np.zeros(0, np.float32) if x is None else x
    if len(ids) != len(x) or x.dtype != np.float32:
        raise InputError(
            expected="one adversarial in float32 for every id",
            got=f"{len(ids)} ids and {len(x)} adversarials in {x.dtype}",
            remedy="Pass the float32 values that were verified, one per id.",
        )
    return files.Adversarials(ids, x)


def _refer(table: pa.Table, ids: npt.NDArray[np.int64], shard: str) -> pa.Table:
    """Return the rows; the broken rows of the samples `ids` now refer to their adversarials in `shard`."""
    attacked = ~is_evidence(table, Evidence.CLEAN)
    broken = np.asarray(table["broken"], dtype=bool)
    rows = _match(table, ids, attacked & counted(table)) or _match(table, ids, attacked & broken)
    if rows is None:
        raise InputError(
            expected="adversarials of broken attack rows, in the order of the rows",
            got=f"adversarials of the samples {ids[:5].tolist()} ..., which do not match the rows",
            remedy="Pass one adversarial per broken row, sorted like the rows.",
        )
    shards = [None if row is None else shard for row in rows]
    table = table.drop_columns(["adv_shard", "adv_row"])
    table = table.append_column("adv_shard", pa.array(shards, pa.string()))
    return conform(table.append_column("adv_row", pa.array(rows, pa.int32())))


def _match(table: pa.Table, ids: npt.NDArray[np.int64], allowed: npt.NDArray[np.bool_]) -> list[int | None] | None:
    """Match `ids` in order to the allowed rows; return each row's index into `ids`, None if an id has no match."""
    places: list[int | None] = [None] * table.num_rows
    samples, done = np.asarray(table["sample_id"], dtype=np.int64), 0
    for i in np.flatnonzero(allowed).tolist():
        if done < len(ids) and samples[i] == ids[done]:
            places[i], done = done, done + 1
    return places if done == len(ids) else None


def refuse_used(path: Path) -> None:
    """Raise a RunError unless the folder can take a new Run: it is absent or empty, or holds a Run without rows."""
    if (path / MANIFEST).exists() and files.shards(path):
        raise RunError(
            expected="a new or empty folder",
            got=f"{path}, which holds a Run",
            remedy="Pass resume=True (--resume) to continue this Run, or choose another folder with out= (--out).",
        )
    if path.exists() and not (path / MANIFEST).exists() and not (path.is_dir() and _is_empty(path)):
        raise RunError(
            expected="a new or empty folder",
            got=f"{path}, which holds files but no Run",
            remedy="Choose another folder with out= (--out).",
        )


def _is_empty(path: Path) -> bool:
    """Return whether a folder holds only the lock, temporary files and empty folders: what a killed `create` leaves."""
    shards = (files.ROWS_FOLDER, files.ADVERSARIALS_FOLDER)
    return all(
        file.name == LOCK or is_temporary(file) or (file.name in shards and file.is_dir() and not any(file.iterdir()))
        for file in path.iterdir()
    )


def _undo(path: Path, made: bool) -> None:
    if not (path / MANIFEST).exists():
        (path / LOCK).unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                path.rmdir()


def refuse_other(path: Path, stored: Manifest, manifest: Mapping[str, Any]) -> None:
    """Raise a RunError if `manifest` has another identity than the Run in `path`, whose manifest is `stored`."""
    fields = differences(stored.identity.raw, manifest["identity"])
    if material(fields):
        # The outermost fields first: they say what the inner ones follow from.
        shown = sorted(fields.items(), key=lambda item: item[0].count(".") + item[0].count("["))[:FIELDS_SHOWN]
        listed = "; ".join(f"{name} (stored {_short(old)}, given {_short(new)})" for name, (old, new) in shown)
        if len(fields) > len(shown):
            listed += f"; and {len(fields) - len(shown)} more"
        raise RunError(
            expected=f"the evaluation stored in {path}",
            got=f"an evaluation that differs in {listed}",
            remedy="Pass the stored values, or choose another folder with out= (--out).",
        )


def _short(value: Any) -> str:
    text = str(value)
    if DIGEST.fullmatch(text):
        return f"{text[:12]}…"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sealed(manifest: Mapping[str, Any], listed: ShardList | None) -> dict[str, Any]:
    """Return the manifest with its checksums; unchanged for a Run of an earlier version, which has none."""
    plain = json.loads(encode(manifest))
    return dict(manifest) if listed is None else seal({**plain, CHECKSUMS: listed.stored})


def _sweep(shards: Shards, finished: bool) -> None:
    """Remove temporary files and the adversarials of a shard whose rows a killed writer did not write.

    Such a shard is the last one and has no rows, and the list does not name it. Nothing else is removed, and in a
    finished Run nothing but temporary files.
    """
    path = shards.run
    rows = shards.all_rows(["adv_shard"])  # if rows are unreadable, nothing is removed
    used = {*shards.names, *rows["adv_shard"].drop_null().unique().to_pylist()}
    last = shards.names[-1] if shards.names else ""
    with writing(path):
        _remove_temporary(path)
        for shard in files.shards(path, files.ADVERSARIALS_FOLDER):
            if shard not in used and shard > last and not finished:
                files.adversarials_file(path, shard).unlink()


def _clear(path: Path) -> None:
    """Remove what a killed writer left in a folder without rows: a list, adversarials and temporary files."""
    with writing(path):
        (path / LIST).unlink(missing_ok=True)
        _remove_temporary(path)
        for shard in files.shards(path, files.ADVERSARIALS_FOLDER) if (path / MANIFEST).exists() else ():
            files.adversarials_file(path, shard).unlink()


def _remove_temporary(path: Path) -> None:
    for leftover in filter(is_temporary, [*path.glob(".*"), *path.glob("*/.*")]):
        leftover.unlink(missing_ok=True)


def _last_number(path: Path) -> int:
    heads = (name.split("-")[0] for name in [*files.shards(path), *files.shards(path, files.ADVERSARIALS_FOLDER)])
    return max((int(head) for head in heads if head.isdecimal()), default=0)
