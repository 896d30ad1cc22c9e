"""Read and write the shards of a Run (files of rows, files of adversarials); a file is complete or absent."""

import hashlib
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
from safetensors import SafetensorError
from safetensors.numpy import load, save

from brinell.errors import RunError, error_text
from brinell.results.format.checksums import FileSum, changed
from brinell.results.format.read_parquet import count_rows, read_table
from brinell.results.format.schema import SOMETIMES
from brinell.storage import write_atomic
from brinell.untrusted import open_plain, read_plain

ROWS_FOLDER, ADVERSARIALS_FOLDER = "rows", "adversarials"
ROWS_END, ADVERSARIALS_END = ".parquet", ".safetensors"
# What the readers raise for damaged files: a flipped bit can turn any number or text in a header into any other.
DAMAGE = (
    pa.ArrowException, SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError,
    OverflowError, MemoryError, RecursionError, struct.error,
)  # fmt: skip


class Adversarials(NamedTuple):
    """Adversarial inputs `x`, and the sample id of each input (`ids`)."""

    ids: npt.NDArray[np.int64]
    x: npt.NDArray[np.float32]


def joined(parts: Sequence[Adversarials]) -> Adversarials:
    """Return the adversarials of all parts in one.

    >>> len(joined([]).ids)
    0
    """
    held = [part for part in parts if len(part.ids)]
    if not held:
        return Adversarials(np.zeros(0, np.int64), np.zeros(0, np.float32))
    return Adversarials(np.concatenate([p.ids for p in held]), np.concatenate([p.x for p in held]))


def file_name(text: str) -> str:
    """Return a safe name for a file or folder: characters except letters, digits and ".+-_" are replaced by "-".

    >>> file_name("cifar10/Linf/Rice 2020")
    'cifar10-Linf-Rice-2020'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-+") or "unnamed"


def rows_file(run: Path, shard: str) -> Path:
    """Return the path of the file with a shard's rows."""
    return run / ROWS_FOLDER / f"{shard}{ROWS_END}"


def adversarials_file(run: Path, shard: str) -> Path:
    """Return the path of the file with a shard's adversarials; raise a RunError if it is outside the Run."""
    if Path(shard).name != shard or "\\" in shard:
        raise RunError(
            expected="rows that refer to files in the folder adversarials/ of their Run",
            got=f"a row that refers to {repr(shard)[:60]}",
            remedy="Restore the rows from a copy. If the Run comes from somebody else, do not use it.",
        )
    return run / ADVERSARIALS_FOLDER / f"{shard}{ADVERSARIALS_END}"


def shards(run: Path, folder: str = ROWS_FOLDER) -> list[str]:
    """Return the sorted names of the finished shards in one folder of a Run, `rows` or `adversarials`."""
    end = ROWS_END if folder == ROWS_FOLDER else ADVERSARIALS_END
    return sorted(file.name[: -len(end)] for file in (run / folder).glob(f"*{end}") if not file.name.startswith("."))


def write_rows(path: Path, table: pa.Table) -> FileSum:
    """Write one shard of rows as Parquet with a checksum on every page; return its checksum."""
    sink = pa.BufferOutputStream()
    for group in SOMETIMES:
        if set(group) <= set(table.column_names) and all(table[name].null_count == table.num_rows for name in group):
            table = table.drop_columns(list(group))
    pq.write_table(table, sink, write_page_checksum=True)
    data = sink.getvalue()
    write_atomic(path, data)
    return FileSum(data.size, hashlib.sha256(data).hexdigest(), table.num_rows)


def read_rows(path: Path, columns: Sequence[str] | None = None, listed: FileSum | None = None) -> pa.Table:
    """Return one shard of rows in the current schema, with all columns or only `columns`.

    `listed` is what the Run lists about the file. If it is given, the whole file must be as listed.
    """
    try:
        data = read_plain(path)
        if listed is not None:
            listed.refuse_other(path, data)
        table = read_table(data, columns)
    except DAMAGE as error:
        raise _damaged(path, error) from error
    if listed is not None and table.num_rows != listed.entries:
        raise changed(path, f"{listed.entries} rows", f"{table.num_rows} rows")
    return table


def span(path: Path, listed: FileSum | None = None) -> tuple[int, int]:
    """Return the smallest and the largest sample id in a shard of rows; (0, -1) if it has no rows."""
    ids = np.asarray(read_rows(path, ("sample_id",), listed)["sample_id"])
    return (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)


def write_adversarials(path: Path, adversarials: Adversarials) -> FileSum:
    """Write one shard of adversarials as safetensors; return its checksum."""
    ids, x = np.ascontiguousarray(adversarials.ids), np.ascontiguousarray(adversarials.x)
    data = save({"ids": ids, "x": x})
    write_atomic(path, data)
    return FileSum(len(data), hashlib.sha256(data).hexdigest(), len(ids))


def read_adversarials(path: Path, listed: FileSum | None = None) -> Adversarials:
    """Return the adversarials of one shard; with `listed`, the whole file must be as the Run lists it."""
    try:
        data = read_plain(path)
        if listed is not None:
            listed.refuse_other(path, data)
        tensors = load(data)
        ids, x = tensors["ids"], tensors["x"]
        if ids.dtype != np.int64 or ids.ndim != 1 or x.dtype != np.float32 or x.ndim < 1 or len(x) != len(ids):
            raise ValueError(f"ids {ids.dtype} {ids.shape} and x {x.dtype} {x.shape}")
    except DAMAGE as error:
        raise _damaged(path, error) from error
    if listed is not None and len(ids) != listed.entries:
        raise changed(path, f"{listed.entries} adversarials", f"{len(ids)} adversarials")
    return Adversarials(ids, x)


def file_sum(path: Path, count: int) -> FileSum:
    """Return the size and hash of a file that holds `count` rows or adversarials."""
    data = read_plain(path)
    return FileSum(len(data), hashlib.sha256(data).hexdigest(), count)


def footer_sum(path: Path) -> FileSum:
    """Return the size and the number of rows of a file of rows, without its hash."""
    try:
        with open_plain(path) as file:
            return FileSum(os.fstat(file.fileno()).st_size, "", count_rows(file))
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        expected=f"a readable file {path}",
        got=error_text(error),
        remedy="Restore it from a copy, or delete this shard in rows/ and adversarials/ and resume with --resume.",
    )
