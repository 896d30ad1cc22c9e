"""Merge Runs on different parts of the data into one Run."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import InputError, RunError
from brinell.results import row_queries
from brinell.results.format import files
from brinell.results.format.manifest import decode, differences, encode, material, new_manifest
from brinell.results.format.schema import ROWS
from brinell.results.format.shards import Shards
from brinell.results.format.writer import Writer
from brinell.results.run import Run, gather

SHARD_ROWS = 2048
PER_SAMPLE = "one per sample"
KEPT = ("environment", "created", "finished", "wall_seconds")
# Fields that an interrupted merge may have written before the merged Runs changed.
UPDATED = ("wall_seconds", "checks", "notes", "merged_from")
# Columns that say where an adversarial is stored.
REFERENCES = ("adv_shard", "adv_row")


def merge(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Run:
    """Write the rows and adversarials of several Runs as one Run in the new folder `out`, and return this Run.

    The Runs must have the same identity except for `data`. If samples have their own radii, a sample must have the same
    radius in every Run. If two Runs have a row of the same sample and attack, one row is kept; different outcomes raise
    a RunError. The result does not depend on the order of `paths`. An interrupted merge is continued by the same call.

    >>> merge([], "nowhere")
    Traceback (most recent call last):
    brinell.errors.InputError: expected at least one Run to merge, got none. Pass the folders of the Runs.
    """
    if not paths:
        raise InputError(expected="at least one Run to merge", got="none", remedy="Pass the folders of the Runs.")
    runs = sorted(map(Run.open, paths), key=lambda run: (str(run.identity.data.fingerprint), str(run.path)))
    _refuse_different(runs)
    for run in runs:
        run.shards.check_hashes()
    # Checked before the rows, whose error would only say that two outcomes differ.
    radii = _merged_radii(runs)
    table, origin = _merged_rows(runs)
    out, manifest = Path(out), _merged_manifest(runs, row_queries.samples(table), radii)
    with _writer(out, manifest, table) as writer:
        for start in range(len(_stored_rows(out)), table.num_rows, SHARD_ROWS):
            _copy(writer, runs, table.slice(start, SHARD_ROWS), origin[start : start + SHARD_ROWS])
        finished = all(run.finished for run in runs)
        if writer.stored.finished != finished:
            writer.update(finished=finished, **{key: manifest[key] for key in UPDATED})
    return Run.open(out)


def _writer(out: Path, manifest: dict[str, Any], table: pa.Table) -> Writer:
    """Return the writer of a new Run, or of the Run of the same merge that was interrupted or is already done."""
    if not files.shards(out):
        return Writer.create(out, manifest)
    refusal = RunError(
        expected="a new or empty folder, or the result of the same merge",
        got=f"{out}, which holds another Run",
        remedy="Choose another folder with out= (--out).",
    )
    if material(differences(decode(out).identity.raw, json.loads(encode(manifest))["identity"])):
        raise refusal
    writer = Writer.resume(out, manifest)
    done = _stored_rows(out)
    if not _equal(done, table.slice(0, len(done)).drop_columns(list(REFERENCES))):
        writer.close()
        raise refusal
    return writer


def _stored_rows(run: Path) -> pa.Table:
    return Shards.open(run).all_rows([name for name in ROWS.names if name not in REFERENCES])


def _equal(a: pa.Table, b: pa.Table) -> bool:
    """Return whether two tables have the same rows; NaN equals NaN."""
    return len(a) == len(b) and all(
        a[name].equals(b[name]) or repr(a[name].to_pylist()) == repr(b[name].to_pylist()) for name in a.column_names
    )


def _refuse_different(runs: Sequence[Run]) -> None:
    names = dict.fromkeys(name for run in runs[1:] for name in differences(_shared(runs[0]), _shared(run)))
    if material(names):
        raise RunError(
            expected="Runs of one evaluation on different parts of the data",
            got=f"Runs that differ in {', '.join(sorted(names))}",
            remedy="Merge only Runs with the same threat, criterion (stored as goal), plan, model, seed and precision.",
        )


def _shared(run: Run) -> dict[str, Any]:
    """Return the part of a Run's identity that merged Runs must share: all except the data and per-sample radii."""
    shared = {name: value for name, value in run.identity.raw.items() if name != "data"}
    if run.identity.threat.per_sample:
        shared["threat"] = {**shared["threat"], "eps": PER_SAMPLE, "eps_text": PER_SAMPLE}
    return shared


def _merged_radii(runs: Sequence[Run]) -> dict[int, float] | None:
    """Return a dict from sample id to radius over all Runs, sorted; None if no Run has a radius per sample."""
    merged: dict[int, float] = {}
    several = [run for run in runs if run.identity.threat.per_sample]
    for run in several:
        radii = run.sample_radii
        if radii is None:
            raise RunError(
                expected="Runs that say which sample has which radius (sample_ids in the manifest)",
                got=f"{run.path}, which an earlier version of Brinell wrote without sample_ids",
                remedy="Evaluate this part of the data again.",
            )
        conflicts = sorted(i for i, eps in radii.items() if merged.get(i, eps) != eps)
        if conflicts:
            i = conflicts[0]
            raise RunError(
                expected="one radius for each sample",
                got=f"{len(conflicts)} samples with two radii, the first with id {i} ({merged[i]:g} and {radii[i]:g})",
                remedy="Merge only Runs in which a sample id has the same radius.",
            )
        merged |= radii
    return dict(sorted(merged.items())) if several else None


def _merged_rows(runs: Sequence[Run]) -> tuple[pa.Table, row_queries.Ids]:
    """Return the rows of all Runs, sorted and without repetitions, and for each row the index of its Run."""
    tables = [run.rows() for run in runs]
    table = row_queries.arrange(pa.concat_tables(tables), runs[0].attacks)
    origin = np.repeat(np.arange(len(runs)), [t.num_rows for t in tables])
    # `arrange` keeps the first of equal rows: a row belongs to the first Run that has its (sample, attack).
    keys = [key for t in tables for key in zip(t["sample_id"].to_pylist(), t["attack"].to_pylist(), strict=True)]
    first = dict(zip(reversed(keys), reversed(origin.tolist()), strict=True))
    kept = zip(table["sample_id"].to_pylist(), table["attack"].to_pylist(), strict=True)
    proofs = _merged_certificates(runs)
    # Certificates refer to no adversarial, so that any Run may be their origin.
    origins = [*(first[key] for key in kept), *([0] * proofs.num_rows)]
    return pa.concat_tables([table, proofs]), np.array(origins, dtype=np.int64)


def _merged_certificates(runs: Sequence[Run]) -> pa.Table:
    """Return the certificates of all Runs; of those that one call made for one sample, the largest radius."""
    table = pa.concat_tables([run.certificates() for run in runs])
    # Counterexamples are rows of attacks and come with these.
    table = table.filter(pc.invert(table["broken"]))
    radius = np.asarray(pc.fill_null(table["radius"], 0.0), dtype=np.float64)
    table = table.take(np.lexsort((-radius, row_queries.ids_of(table))))
    keys = zip(*(table[name].to_pylist() for name in ("sample_id", "attack", "attack_hash")), strict=True)
    first: dict[tuple[Any, ...], int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    return table.take(pa.array(first.values(), pa.int64()))


def _copy(writer: Writer, runs: Sequence[Run], table: pa.Table, origin: row_queries.Ids) -> None:
    stored = np.asarray(pc.is_valid(table["adv_shard"]), dtype=bool)
    gathered, places = [], []
    for i in np.unique(origin[stored]):
        from_run = stored & (origin == i)
        gathered.append(gather(runs[i].shards, table.filter(pa.array(from_run))))
        places.append(np.flatnonzero(from_run))
    if not gathered:
        return writer.append(table)
    order = np.argsort(np.concatenate(places))
    ids, x = (np.concatenate(arrays)[order] for arrays in zip(*gathered, strict=True))
    return writer.append(table, ids, x)


def _merged_manifest(runs: Sequence[Run], ids: row_queries.Ids, radii: dict[int, float] | None) -> dict[str, Any]:
    sources = _distinct(source for run in runs for source in run.identity.data.sources or [run.identity.data.raw])
    names = _distinct(source.get("name") for source in sources)
    digest = hashlib.sha256("\n".join(sorted(str(s.get("fingerprint")) for s in sources)).encode()).hexdigest()
    data = {"fingerprint": digest, "n": len(ids), "name": " + ".join(map(str, names)) if any(names) else None}
    identity = {**_shared(runs[0]), "data": {**data, "sources": sources}}
    if radii is not None:
        # Some samples of an unfinished Run have no rows yet.
        radii = {i: radii[i] for i in ids.tolist() if i in radii}
        eps = list(radii.values())
        text = f"{min(eps):.4g}…{max(eps):.4g}" if eps else PER_SAMPLE
        identity["threat"] = {**identity["threat"], "eps": eps, "eps_text": text}
    manifest = new_manifest(identity, runs[0].environment.raw)
    if radii is not None:
        manifest["sample_ids"] = list(radii)
    walls = [run.wall_seconds for run in runs]
    manifest["wall_seconds"] = sum(wall for wall in walls if wall is not None) if any(walls) else None
    manifest["checks"] = _distinct(check for run in runs for check in run.checks)
    certifiers = _distinct(call for run in runs for call in run.manifest.get("certifiers", ()))
    if certifiers:
        manifest["certifiers"] = certifiers
    probes = _distinct(probe for run in runs for probe in run.probes)
    if probes:
        manifest["probes"] = probes
    manifest["notes"] = _distinct(note for run in runs for note in run.notes)
    if not all(run.images for run in runs):
        manifest["images"] = False
    manifest["merged_from"] = [
        {"data": run.identity.raw.get("data"), **{key: run.manifest.get(key) for key in KEPT}} for run in runs
    ]
    return manifest


def _distinct(values: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept
