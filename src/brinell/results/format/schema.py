"""The columns of a Run: one row per (sample, attack).

A row is a piece of evidence about a sample: its clean prediction, an attack, or a certificate.
A new nullable column does not change SCHEMA_VERSION: readers drop unknown columns and fill missing nullable columns
with nulls. Any other change increases SCHEMA_VERSION.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import InputError

SCHEMA_VERSION = 1
CLEAN = "clean"
"""The name in column `attack` of the clean row. Every sample has one; it is broken where the model is wrong."""


class Evidence(Enum):
    """The kinds of evidence that a row can hold about a sample."""

    CLEAN = "clean"
    ATTACK = "attack"
    CERTIFICATE = "certificate"


NUMBERS = ("sample_id", "attack", "broken", "forwards", "backwards", "seconds", "verified", "judged", "chosen", "flags")
"""The columns from which accuracies, costs and the verdict are computed."""

CERTIFICATE = "certificate:"
"""The start of the name in column `attack` of a certificate; the method that made it follows."""

PROOF = ("certified", "radius", "bound", "passes", "stopped")
"""The columns that only certificates fill; shards without certificates do not store them."""

SOMETIMES = (PROOF, ("sample_name",))
"""The groups of columns that a shard does not store if it has no value for any of the group."""

LATER_COLUMNS = frozenset({"judged", "chosen"})
"""The columns that the first version of Brinell did not store; only these, and groups of SOMETIMES, may be missing."""

AUDIT = "audit"
"""The flag of rows of samples that were drawn for the audit."""

STOOD_STILL = "stood still"
"""The flag of attacks that did not break a sample and whose answers stayed the same for half of an attempt or more."""


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


ROWS: pa.Schema = pa.schema(
    [
        _required("sample_id", pa.int64()),
        _required("x_sha256", pa.string()),
        _required("label", pa.int64()),
        _required("clean_pred", pa.int64()),
        _required("clean_margin", pa.float32()),  # best wrong logit minus true logit: > 0 means misclassified
        _required("attack", pa.string()),  # name of the stage in the plan, or CLEAN
        _required("attack_hash", pa.string()),
        pa.field("restart", pa.int32()),
        pa.field("target", pa.int32()),  # class index
        _required("seed", pa.int64()),
        _required("broken", pa.bool_()),
        pa.field("adv_pred", pa.int64()),
        pa.field("adv_margin", pa.float32()),  # largest margin seen
        pa.field("best_loss", pa.float32()),  # largest value of the attack's own loss seen
        pa.field("distance", pa.float64()),
        pa.field("first_broken_at", pa.int32()),
        _required("forwards", pa.int64()),
        _required("backwards", pa.int64()),
        _required("seconds", pa.float64()),
        _required("precision", pa.string()),
        _required("device", pa.string()),
        pa.field("verified", pa.bool_()),  # null where not broken
        pa.field("verified_8bit", pa.bool_()),
        pa.field("judged", pa.list_(pa.bool_())),  # randomised models: which of the fresh passes were fooled
        pa.field("chosen", pa.int32()),  # randomised models: how many earlier passes were fooled, which chose the row
        pa.field("flags", pa.list_(pa.string())),
        pa.field("adv_shard", pa.string()),  # where the adversarial lies: adversarials/<adv_shard>.safetensors
        pa.field("adv_row", pa.int32()),
        pa.field("certified", pa.bool_()),  # certificates: whether no point within `radius` changes the class
        pa.field("radius", pa.float64()),  # certificates: the radius that was proved, 0 if none was
        pa.field("bound", pa.float64()),  # certificates: lower bound on the true logit minus the largest other logit
        pa.field("passes", pa.int64()),  # certificates: bound computations, or draws
        pa.field("stopped", pa.string()),  # certificates: why the sample stays open, "" if it is certified
        pa.field("sample_name", pa.string()),  # what the user calls the sample, e.g. the name of its file
    ]
)


def conform(table: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """Return the table with the columns of ROWS, or only the columns `names`.

    Unknown columns are dropped; missing nullable columns are filled with nulls.

    >>> old = ROWS.empty_table().drop_columns(["verified_8bit"])
    >>> conform(old.append_column("added_later", pa.array([], pa.int8()))).schema == ROWS
    True
    """
    wanted = ROWS if names is None else pa.schema([f for f in ROWS if f.name in names])
    missing = [f.name for f in wanted if not f.nullable and f.name not in table.column_names]
    if missing:
        raise InputError(
            expected="every required column of a Run's rows",
            got=f"a table without {', '.join(missing)}",
            remedy="Build the table with pyarrow.Table.from_pylist(records, schema=brinell.results.ROWS).",
        )
    return pa.table([_conform(table, field) for field in wanted], schema=wanted)


def is_evidence(table: pa.Table, kind: Evidence) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that hold this kind of evidence.

    >>> rows = pa.table({"attack": ["clean", "pgd", "certificate:crown"]})
    >>> is_evidence(rows, Evidence.CLEAN).tolist(), is_evidence(rows, Evidence.ATTACK).tolist()
    ([True, False, False], [False, True, False])
    """
    clean = np.asarray(pc.equal(table["attack"], CLEAN), dtype=bool)
    if kind is Evidence.CLEAN:
        return clean
    proofs = np.asarray(pc.starts_with(table["attack"], CERTIFICATE), dtype=bool)
    return proofs if kind is Evidence.CERTIFICATE else ~clean & ~proofs


def without_proofs(table: pa.Table) -> pa.Table:
    """Return the rows that decide the robust accuracy: without the certificates, but with their counterexamples.

    >>> rows = {"attack": ["pgd", "certificate:crown", "certificate:exact"], "broken": [False, False, True]}
    >>> without_proofs(pa.table(rows))["attack"].to_pylist()
    ['pgd', 'certificate:exact']
    """
    proofs = is_evidence(table, Evidence.CERTIFICATE) & ~np.asarray(table["broken"], dtype=bool)
    return table.filter(pa.array(~proofs)) if proofs.any() else table


def counted(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that count as broken: both `broken` and `verified` are true.

    >>> counted(ROWS.empty_table()).tolist()
    []
    """
    return np.asarray(pc.and_(table["broken"], pc.fill_null(table["verified"], False)), dtype=bool)


def margin_left(table: pa.Table) -> npt.NDArray[np.float64]:
    """Return for each row the share of the clean margin that is left: 1 at the clean point, 0 at the boundary.

    The share does not depend on the scale of the logits. It is inf where a margin is missing or the sample is wrong.

    >>> margin_left(pa.table({"clean_margin": [-4.0, -4.0, 1.0], "adv_margin": [-1.0, None, 2.0]})).tolist()
    [0.25, inf, inf]
    """
    clean, best = (np.asarray(table[c].cast(pa.float64()).fill_null(np.nan)) for c in ("clean_margin", "adv_margin"))
    usable = np.isfinite(clean) & np.isfinite(best) & (clean < 0)
    left = np.full(len(clean), np.inf)
    left[usable] = best[usable] / clean[usable]
    return left


def flagged(table: pa.Table, flag: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose `flags` contain `flag`.

    >>> flagged(pa.table({"flags": [["nan"], [], ["audit", "nan"]]}), "nan").tolist()
    [True, False, True]
    """
    column = table["flags"].combine_chunks()
    mask = np.zeros(table.num_rows, dtype=bool)
    # Flattened: a loop over the lists would make a Python object of every row.
    mask[
        np.asarray(pc.list_parent_indices(column))[np.asarray(pc.equal(pc.list_flatten(column), flag), dtype=bool)]
    ] = 1
    return mask


def _conform(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.column_names:
        column = pa.nulls(table.num_rows, field.type)
    else:
        column = _cast(table[field.name], field)
    if field.name == "flags" and column.null_count:
        return pa.array([flags or [] for flags in column.to_pylist()], field.type)
    return column


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise InputError(
            expected=f"a value in every row of column {field.name}",
            got=f"{column.null_count} nulls",
            remedy="Fill them in: only the nullable columns of brinell.results.ROWS may be empty.",
        )
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            expected=f"column {field.name} of type {field.type}",
            got=f"{column.type} ({error})",
            remedy=f"Cast the column to {field.type} before storing it.",
        ) from error
