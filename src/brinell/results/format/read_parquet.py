"""Read a shard of rows from Parquet bytes, with limits: a few bytes of Parquet can stand for billions of values."""

from collections.abc import Sequence
from typing import IO

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

from brinell.results.format.schema import LATER_COLUMNS, ROWS, SOMETIMES, conform
from brinell.untrusted.limits import ALWAYS, FACTOR, refuse_large

# The memory of one row, with all its texts, at most. Real rows take a third of it.
ROW_BYTES = 700
# What one text takes, at most, and the texts of one row on average.
LONGEST_TEXT, TEXTS_BYTES = 4_000, 400
# How Brinell packs rows. Other codecs, which it never used, can pack gigabytes into kilobytes.
CODECS = frozenset({"SNAPPY", "UNCOMPRESSED"})
TEXTS = [field.name for field in ROWS if field.type == pa.string()]
LISTS = tuple(field.name for field in ROWS if pa.types.is_list(field.type))
# Limits of the footer: its longest text, and its longest list.
FOOTER_TEXT, FOOTER_LIST = 1 << 22, 1 << 18


def read_table(data: "bytes | pa.Buffer", columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows in Parquet bytes in the current schema, with all columns or only `columns`.

    Raise a ValueError (or an error of pyarrow) for damaged and for costly files.
    """
    limits = {"thrift_string_size_limit": FOOTER_TEXT, "thrift_container_size_limit": FOOTER_LIST}
    with pq.ParquetFile(pa.BufferReader(data), **limits) as file:
        known, metadata = file.schema_arrow.names, file.metadata
    _refuse_renamed(known)
    refuse_many_rows(metadata.num_rows, len(data))
    wanted = [name for name in ROWS.names if name in known and (columns is None or name in columns)]
    _refuse_unusual(metadata, wanted)
    # Texts as a dictionary: a column can repeat a long text, which the file holds once.
    with pq.ParquetFile(
        pa.BufferReader(data),
        page_checksum_verification=True,
        read_dictionary=[t for t in TEXTS if t in known],
        **limits,
    ) as file:
        # Shards are small, and threads of pyarrow that still run when Python exits can abort the process.
        table = file.read(columns=wanted, use_threads=False)
    _refuse_long_texts(table)
    table = conform(table, columns)
    table.validate(full=True)
    return table


def count_rows(file: IO[bytes]) -> int:
    """Return the number of rows in an open Parquet file, from its footer."""
    return int(pq.read_metadata(file).num_rows)


def refuse_many_rows(rows: int, size: int) -> None:
    """Raise a ValueError if so many rows would take too much memory for Parquet files of this size in bytes."""
    refuse_large(rows * ROW_BYTES, max(ALWAYS, FACTOR * size), f"a table of {rows:,} rows")


def _refuse_renamed(known: Sequence[str]) -> None:
    """Raise a ValueError if a column is missing that a version of Brinell stored, such as a damaged name of a column.

    Columns of later versions are accepted, but not in place of a known column: no version has dropped one.
    """
    missing = [name for name in ROWS.names if name not in known]
    for group in SOMETIMES:
        if set(group) <= set(missing):
            missing = [name for name in missing if name not in group]
    if set(missing) - LATER_COLUMNS or (missing and set(known) - set(ROWS.names)):
        raise ValueError(f"no column {missing[0]}")
    if len(set(known)) < len(known):
        raise ValueError("two columns of one name")


def _refuse_unusual(metadata: pq.FileMetaData, wanted: Sequence[str]) -> None:
    """Raise a ValueError for codecs that Brinell never used, and for lists of many entries."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for k in range(row_group.num_columns):
            column = row_group.column(k)
            name = column.path_in_schema.split(".")[0]
            if name in wanted and column.compression not in CODECS:
                raise ValueError(f"the column {name} is packed with {column.compression}, which Brinell never uses")
            refuse_large(column.num_values * (8 if name in LISTS else 1), ALWAYS, f"the column {name}")


def _refuse_long_texts(table: pa.Table) -> None:
    """Raise a ValueError if texts are long; texts are read as a dictionary, where equal ones take space once."""
    total = 0
    for name in table.column_names:
        for chunk in table[name].chunks if pa.types.is_dictionary(table[name].type) else ():
            lengths = pc.binary_length(chunk.dictionary)
            if (pc.max(lengths).as_py() or 0) > LONGEST_TEXT:
                raise ValueError(f"a text of {pc.max(lengths).as_py():,} bytes in the column {name}")
            total += pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
    refuse_large(total, ALWAYS // 256 + table.num_rows * TEXTS_BYTES, "the text of all rows")
