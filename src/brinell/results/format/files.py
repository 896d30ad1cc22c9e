"""Read and write the shards of a Run (files of rows, files of adversarials); a file is complete or absent."""

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
from safetensors import SafetensorError
from safetensors.numpy import load, save

from brinell.errors import InputError, RunError, error_text
from brinell.results.format.schema import ROWS, conform

ROWS_FOLDER, ADVERSARIALS_FOLDER = "rows", "adversarials"
ROWS_END, ADVERSARIALS_END, TEMPORARY_END = ".parquet", ".safetensors", ".tmp"


class Adversarials(NamedTuple):
    """Adversarial inputs `x`, and the sample id of each input (`ids`)."""

    ids: npt.NDArray[np.int64]
    x: npt.NDArray[np.float32]


def file_name(text: str) -> str:
    """Return a safe name for a file or folder: characters except letters, digits and ".+-_" are replaced by "-".

    >>> file_name("cifar10/Linf/Rice 2020")
    'cifar10-Linf-Rice-2020'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-+") or "unnamed"


def write_atomic(path: Path, data: "bytes | pa.Buffer") -> None:
    """Write the data to `path` completely or not at all; return when the file is on disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_END}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk (fsync), if the platform supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover - platforms that cannot open folders
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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


def is_temporary(path: Path) -> bool:
    """Return whether the name of a file says that it is an unfinished file of `write_atomic`."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY_END)


def shards(run: Path, folder: str = ROWS_FOLDER) -> list[str]:
    """Return the sorted names of the finished shards in one folder of a Run, `rows` or `adversarials`."""
    end = ROWS_END if folder == ROWS_FOLDER else ADVERSARIALS_END
    return sorted(file.name[: -len(end)] for file in (run / folder).glob(f"*{end}") if not file.name.startswith("."))


def write_rows(path: Path, table: pa.Table) -> None:
    """Write one shard of rows as Parquet with a checksum on every page."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    write_atomic(path, sink.getvalue())


def read_rows(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return one shard of rows in the current schema, with all columns or only `columns`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            known = file.schema_arrow.names
            return conform(file.read(columns=columns and [c for c in columns if c in known]), columns)
    except (pa.ArrowException, OSError, InputError) as error:
        raise _damaged(path, error) from error


def span(path: Path) -> tuple[int, int]:
    """Return the smallest and the largest sample id in a shard of rows; (0, -1) if it has no rows."""
    try:
        with pq.ParquetFile(path) as file:
            column = file.schema_arrow.get_field_index("sample_id")
            groups = [file.metadata.row_group(k).column(column).statistics for k in range(file.metadata.num_row_groups)]
            if groups and all(g is not None and g.has_min_max for g in groups):
                return min(g.min for g in groups), max(g.max for g in groups)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    ids = np.asarray(read_rows(path)["sample_id"])
    return (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)


def read_all_rows(run: Path, names: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of the shards `names`, in this order (default: all shards), with all columns or `columns`."""
    names = shards(run) if names is None else names
    tables = [read_rows(rows_file(run, shard), columns) for shard in names]
    return pa.concat_tables([conform(ROWS.empty_table(), columns), *tables])


def referenced(run: Path) -> set[str]:
    """Return the names of the adversarial shards that the rows of a Run refer to."""
    return set(read_all_rows(run, columns=["adv_shard"])["adv_shard"].drop_null().unique().to_pylist())


def write_adversarials(path: Path, adversarials: Adversarials) -> None:
    """Write one shard of adversarials as safetensors."""
    ids, x = np.ascontiguousarray(adversarials.ids), np.ascontiguousarray(adversarials.x)
    write_atomic(path, save({"ids": ids, "x": x}))


def read_adversarials(path: Path) -> Adversarials:
    """Return the adversarials of one shard."""
    try:
        tensors = load(path.read_bytes())
        return Adversarials(tensors["ids"], tensors["x"])
    except (SafetensorError, KeyError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        expected=f"a readable file {path}",
        got=error_text(error),
        remedy="Restore it from a copy, or delete this shard in rows/ and adversarials/ and resume with --resume.",
    )
