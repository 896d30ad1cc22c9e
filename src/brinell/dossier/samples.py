"""The outcomes of a Run's samples, packed into JSON, so that every number can be counted again."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.dossier.check_dossier import BROKEN, CERTIFIED
from brinell.dossier.groups import Grouping
from brinell.results import CLEAN, Evidence, Run, counted, is_evidence, row_queries

WITHSTOOD, UNVERIFIED = 1, 3
CLASS = "class"


def sample_ids(run: Run) -> list[int | str]:
    """Return the names of the samples of a Run, or their ids where the data have no distinct names."""
    ids = row_queries.samples(run.rows()).tolist()
    names = run.sample_names
    named = [names.get(i, i) for i in ids]
    return named if len(set(map(str, named))) == len(ids) else list(ids)


def stage_names(run: Run) -> list[str]:
    """Return the names of the attacks, and of the proofs that found a counterexample, in the order of the rows."""
    others = sorted(set(pc.unique(run.rows()["attack"]).to_pylist()) - {CLEAN, *run.attacks})
    return [*run.attacks, *others]


def packed(run: Run, groupings: Sequence[Grouping] = ()) -> dict[str, Any]:
    """Return the samples of a Run as JSON: ids, hash of the inputs, and a code for each sample and attack.

    Arrays are base64 of little-endian numbers. `outcomes` has a row per sample and a column per attack: 0 for not
    attacked, 1 for withstood, 2 for broken and verified, 3 for broken but not verified. `distance` is that of the
    nearest verified adversarial, nan without one.
    """
    table = run.rows()
    clean = table.filter(pa.array(is_evidence(table, Evidence.CLEAN)))
    ids = row_queries.ids_of(clean)
    labels = np.asarray(clean["label"], dtype=np.int64)
    classes = sorted(set(labels.tolist()))
    of_class = Grouping(CLASS, tuple(map(str, classes)), np.searchsorted(classes, labels).astype(np.int32))
    inputs = "".join(f"{i} {digest}\n" for i, digest in zip(ids.tolist(), clean["x_sha256"].to_pylist(), strict=True))
    found = {
        "ids": sample_ids(run),
        "inputs_sha256": hashlib.sha256(inputs.encode()).hexdigest(),
        "clean": _pack(~counted(clean), "u1"),
        "outcomes": _pack(_outcomes(run, table, ids), "u1"),
        "distance": _pack(_distances(table, ids), "<f8"),
        "groupings": [
            {"name": g.name, "values": list(g.values), "index": _pack(g.places, "<i4")} for g in (of_class, *groupings)
        ],
    }
    if run.bracket is not None:
        states = run.states()
        found["certified"] = _pack([CERTIFIED * (states[i] == "certified") for i in ids.tolist()], "u1")
    return found


def _outcomes(run: Run, table: pa.Table, ids: row_queries.Ids) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    names = stage_names(run)
    codes = np.zeros((len(ids), len(names)), np.uint8)
    broken, verified, rows = np.asarray(table["broken"], dtype=bool), counted(table), row_queries.ids_of(table)
    code = np.where(verified, BROKEN, np.where(broken, UNVERIFIED, WITHSTOOD))
    for j, name in enumerate(names):
        own = row_queries.is_attack(table, name)
        codes[np.searchsorted(ids, rows[own]), j] = code[own]
    return codes


def _distances(table: pa.Table, ids: row_queries.Ids) -> "np.ndarray[Any, np.dtype[np.float64]]":
    own = counted(table) & ~is_evidence(table, Evidence.CLEAN)
    nearest = np.full(len(ids), np.inf)
    at = np.searchsorted(ids, row_queries.ids_of(table)[own])
    np.minimum.at(nearest, at, np.asarray(pc.fill_null(table["distance"], np.inf), dtype=np.float64)[own])
    return np.where(np.isfinite(nearest), nearest, np.nan)


def _pack(values: Any, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
