"""The only writer of a Run's folder.

Layout: ``manifest.json``, ``rows/NAME.parquet``, ``adversarials/NAME.safetensors``. A shard's adversarials are written
before the rows that refer to them: a process killed at any moment loses at most the shard it was writing.
"""

import os
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
from brinell.results.format.lock import LOCK, Lock, locked_folder
from brinell.results.format.manifest import MANIFEST, Manifest, decode, differences, encode, material, now
from brinell.results.format.schema import Evidence, conform, counted, is_evidence

FIXED = ("schema_version", "identity", "created")
SHOWN = 100


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

    def __init__(self, path: Path, manifest: Mapping[str, Any], lock: Lock) -> None:
        self.path = path
        self._manifest = dict(manifest)
        self._lock: Lock | None = lock
        self._count = _last_number(path)
        for folder in (files.ROWS_FOLDER, files.ADVERSARIALS_FOLDER):
            (path / folder).mkdir(exist_ok=True)

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> "Writer":
        """Return the writer of a new Run; the folder `path` is absent, is empty, or holds a Run without rows."""
        path, data = Path(path), encode(manifest)
        _refuse_used(path)
        made = not path.exists()
        lock = locked_folder(path)
        try:
            _refuse_used(path)  # again, now that the lock is held
            files.write_atomic(path / MANIFEST, data)
            return cls(path, manifest, lock)
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
        _refuse_other(path, decode(path), manifest)
        lock = Lock(path)
        try:
            _sweep(path)
            writer = cls(path, decode(path).raw, lock)
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

        `adv_ids[k]` is the sample id of `adv_x[k]`, in the order of the attack rows. The ids are matched in order to
        the attack rows that are broken and verified. If an id has no such row, the ids are matched to all broken
        attack rows.
        """
        self._check_open()
        table, adversarials = conform(table), _pair(adv_ids, adv_x)
        if table.num_rows == 0:
            return
        self._count += 1
        shard = f"{self._count:08d}-{secrets.token_hex(4)}"
        table = _refer(table, adversarials.ids, shard)
        if len(adversarials.ids):
            files.write_adversarials(files.adversarials_file(self.path, shard), adversarials)
        files.write_rows(files.rows_file(self.path, shard), table)

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest that become known later, such as finished, wall_seconds, checks and notes."""
        self._check_open()
        fixed = sorted(set(fields) & set(FIXED))
        if fixed:
            remedy = "Start a new Run with Writer.create to change these fields."
            got = f"{', '.join(fixed)}, which cannot change"
            raise InputError(expected="fields of the manifest that may change", got=got, remedy=remedy)
        manifest = {**self._manifest, **fields}
        files.write_atomic(self.path / MANIFEST, encode(manifest))
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

    def _check_open(self) -> None:
        if self._lock is None:
            raise RunError(
                expected="an open Writer", got=f"a closed Writer of {self.path}", remedy="Open it with Writer.resume."
            )

    def _note_environment(self, environment: Mapping[str, Any]) -> None:
        stored = self.stored
        last = stored.resumed[-1]["environment"] if stored.resumed else stored.environment.raw
        if differences(last, environment):
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
    attacked = is_evidence(table, Evidence.ATTACK)
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


def _refuse_used(path: Path) -> None:
    count = len(files.shards(path))
    if (path / MANIFEST).exists() and count:
        raise RunError(
            expected="a new or empty folder",
            got=f"{path}, which holds a Run with {count} shard{'s' * (count > 1)} of rows",
            remedy="Pass resume=True (--resume) to continue this Run, or choose another folder with out= (--out).",
        )
    if path.exists() and not (path / MANIFEST).exists() and not (path.is_dir() and _is_empty(path)):
        raise RunError(
            expected="a new or empty folder",
            got=f"{path}, which holds files but no Run",
            remedy="Choose another folder with out= (--out).",
        )


def _is_empty(path: Path) -> bool:
    """Return whether a folder holds only the lock and temporary files, which a killed `create` leaves."""
    return all(file.name == LOCK or files.is_temporary(file) for file in path.iterdir())


def _undo(path: Path, made: bool) -> None:
    if not (path / MANIFEST).exists():
        (path / LOCK).unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                path.rmdir()


def _refuse_other(path: Path, stored: Manifest, manifest: Mapping[str, Any]) -> None:
    fields = differences(stored.identity.raw, manifest["identity"])
    if material(fields):
        listed = "; ".join(f"{name} (stored {_short(old)}, given {_short(new)})" for name, (old, new) in fields.items())
        raise RunError(
            expected=f"the evaluation stored in {path}",
            got=f"an evaluation that differs in {listed}",
            remedy="Pass the stored values, or choose another folder with out= (--out).",
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sweep(path: Path) -> None:
    """Remove temporary files and adversarial shards that no row refers to; if rows are unreadable, remove nothing."""
    used = files.referenced(path)
    for leftover in filter(files.is_temporary, [*path.glob(".*"), *path.glob("*/.*")]):
        leftover.unlink()
    for shard in set(files.shards(path, files.ADVERSARIALS_FOLDER)) - used:
        files.adversarials_file(path, shard).unlink()


def _last_number(path: Path) -> int:
    heads = (name.split("-")[0] for name in [*files.shards(path), *files.shards(path, files.ADVERSARIALS_FOLDER)])
    return max((int(head) for head in heads if head.isdecimal()), default=0)
