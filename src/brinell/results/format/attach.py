"""Link adversarials to the rows they belong to."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import InputError
from brinell.results.format.files import Adversarials
from brinell.results.format.schema import Evidence, conform, counted, is_evidence


def pair(ids: npt.NDArray[np.int64] | None, x: npt.NDArray[Any] | None) -> Adversarials:
    """Return ids and adversarials together; refuse what cannot be stored without loss."""
    ids = np.zeros(0, np.int64) if ids is None else np.asarray(ids, np.int64)
    x = np.zeros(0, np.float32) if x is None else x
    if len(ids) != len(x) or x.dtype != np.float32:
        raise InputError(
            expected="as many adversarials in float32 as ids",
            got=f"{len(ids)} ids and {len(x)} adversarials in {x.dtype}",
            remedy="Store the float32 values that were verified.",
        )
    return Adversarials(ids, x)


def refer(table: pa.Table, ids: npt.NDArray[np.int64], shard: str) -> pa.Table:
    """Return the rows with adv_shard and adv_row filled in for the given samples."""
    attacked = is_evidence(table, Evidence.ATTACK)
    broken = np.asarray(table["broken"], dtype=bool)
    rows = _match(table, ids, attacked & counted(table)) or _match(table, ids, attacked & broken)
    if rows is None:
        raise InputError(
            expected="for every adversarial a broken attack row, in the order of the rows",
            got=f"other rows for the adversarials of samples {ids[:5].tolist()} ...",
            remedy="Sort the adversarials as the rows are sorted.",
        )
    shards = [None if row is None else shard for row in rows]
    table = table.drop_columns(["adv_shard", "adv_row"])
    table = table.append_column("adv_shard", pa.array(shards, pa.string()))
    return conform(table.append_column("adv_row", pa.array(rows, pa.int32())))


def _match(table: pa.Table, ids: npt.NDArray[np.int64], allowed: npt.NDArray[np.bool_]) -> list[int | None] | None:
    """Match ids to the allowed rows in order; return for every row the index of its id, or None if one is left."""
    places: list[int | None] = [None] * table.num_rows
    samples, done = np.asarray(table["sample_id"], dtype=np.int64), 0
    for i in np.flatnonzero(allowed).tolist():
        if done < len(ids) and samples[i] == ids[done]:
            places[i], done = done, done + 1
    return places if done == len(ids) else None
