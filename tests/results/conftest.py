"""Small Runs: samples are given as a word of outcomes per sample, one letter per stage."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brinell.results import ROWS, Run, Writer, new_manifest

STAGES = ("one", "two")
IDENTITY: dict[str, Any] = {
    "brinell_format": 1,
    "threat": {"norm": "Linf", "eps": 8 / 255, "box": [0, 1]},
    "goal": "misclassify",
    "plan": {
        "name": "pair",
        "strength": "standard",
        "stages": [{"name": name, "attack": {"steps": 5}, "hash": name * 2} for name in STAGES],
    },
    "model": {"fingerprint": "f00", "name": "net", "classes": 10},
    "data": {"fingerprint": "da7a", "n": None, "name": "toys"},
    "seed": 0,
    "precision": "float32",
    "block": 8,
}


def make_manifest(**changes: Any) -> dict[str, Any]:
    """Return a manifest; a change is keyed by its path in the identity, with two underscores for a dot."""
    identity = copy.deepcopy(IDENTITY)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = identity
        for parent in parents:
            place = place[parent]
        place[last] = value
    return new_manifest(identity, {"brinell": "0.1.0"})


def record(sample: int, attack: str, **fields: Any) -> dict[str, Any]:
    """Return a row of a sample that nothing breaks."""
    row: dict[str, Any] = {
        "sample_id": sample,
        "x_sha256": f"sha-{sample}",
        "label": 1,
        "clean_pred": 1,
        "clean_margin": -1.0,
        "attack": attack,
        "attack_hash": attack * 2,
        "seed": 0,
        "broken": False,
        "forwards": 5,
        "backwards": 4,
        "seconds": 0.5,
        "precision": "float32",
        "device": "cpu",
        "flags": [],
    }
    return {**row, **fields}


def outcomes(sample: int, word: str) -> list[dict[str, Any]]:
    """Return the rows of a sample: clean, then stages; "x" broken, "u" broken but unverified, "." not, " " no row."""
    rows = []
    for attack, letter in zip(("clean", *STAGES), word, strict=False):
        if letter != " ":
            verified = {"x": True, "u": False, ".": True if attack == "clean" else None}[letter]
            distance = 0.0 if attack == "clean" else 0.03 if letter != "." else None
            rows.append(record(sample, attack, broken=letter in "xu", verified=verified, distance=distance))
    return rows


def table_of(samples: Mapping[int, str]) -> pa.Table:
    """Return the rows of several samples."""
    rows = [row for sample, word in samples.items() for row in outcomes(sample, word)]
    return pa.Table.from_pylist(rows, schema=ROWS)


def adversarials_of(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up adversarials for the broken attack rows: every pixel is the id plus the stage's number / 4."""
    hits = [r for r in table.to_pylist() if r["broken"] and r["attack"] != "clean"]
    values = [r["sample_id"] + STAGES.index(r["attack"]) / 4 for r in hits]
    x = np.broadcast_to(np.array(values, np.float32)[:, None, None], (len(hits), 2, 2))
    return np.array([r["sample_id"] for r in hits], np.int64), x


def make_run(path: Path, samples: Mapping[int, str], finished: bool = True, **changes: Any) -> Run:
    """Write a Run in two shards and open it."""
    names = list(samples)
    with Writer.create(path, make_manifest(**changes)) as writer:
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            table = table_of({name: samples[name] for name in part})
            writer.append(table, *adversarials_of(table))
        writer.update(finished=finished)
    return Run.open(path)


def tree(path: Path) -> dict[str, bytes]:
    """Return every file under a folder with its contents."""
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


class World:
    """The helpers above, as one fixture."""

    manifest = staticmethod(make_manifest)
    record = staticmethod(record)
    table = staticmethod(table_of)
    adversarials = staticmethod(adversarials_of)
    run: Callable[..., Run] = staticmethod(make_run)
    tree = staticmethod(tree)


@pytest.fixture
def world() -> type[World]:
    return World


@pytest.fixture
def golden() -> Run:
    return Run.open(Path(__file__).parent / "golden_run_v1")
