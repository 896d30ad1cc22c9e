"""Make tests/results/golden_run_v1, a Run of schema version 1 that every later version must read.

Run it once per schema version (``python tests/results/make_golden_run.py``) and commit what it writes; the folder of an
old version is never made again.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from brinell.results import ROWS, SCHEMA_VERSION, Writer, new_manifest

FOLDER = Path(__file__).parent / f"golden_run_v{SCHEMA_VERSION}"
X = (np.arange(24, dtype=np.float32) / 32).reshape(6, 1, 2, 2)
STAGES = ("apgd-ce", "apgd-t")
IDENTITY = {
    "brinell_format": 1,
    "threat": {"norm": "Linf", "eps": 8 / 255, "box": [0.0, 1.0]},
    "goal": "misclassify",
    "plan": {
        "name": "golden",
        "description": "two stages on every sample",
        "citation": "Croce & Hein 2020",
        "strength": "standard",
        "stages": [{"name": name, "attack": {"kind": "APGD", "steps": 10}, "hash": f"hash-{name}"} for name in STAGES],
    },
    "model": {"fingerprint": "m" * 64, "name": "toy-net", "classes": 4},
    "data": {"fingerprint": "d" * 64, "n": 6, "name": "toys"},
    "seed": 7,
    "precision": "float32",
    "block": 64,
}
ENVIRONMENT = {"brinell": "0.1.0", "torch": "2.0.0", "hardware": "cpu"}


def row(sample: int, attack: str, **fields: Any) -> dict[str, Any]:
    """Return one row of a sample that nothing breaks, with the given fields changed."""
    base = {
        "sample_id": sample,
        "x_sha256": hashlib.sha256(X[sample].tobytes()).hexdigest(),
        "label": sample % 4,
        "clean_pred": sample % 4,
        "clean_margin": -1.5,
        "attack": attack,
        "attack_hash": f"hash-{attack}",
        "seed": 7,
        "broken": False,
        "forwards": 10,
        "backwards": 9,
        "seconds": 0.25,
        "precision": "float32",
        "device": "cpu",
        "flags": [],
    }
    return {**base, **fields}


def clean(sample: int, broken: bool) -> dict[str, Any]:
    """Return the clean row of a sample."""
    wrong = {"clean_pred": 3, "clean_margin": 0.5} if broken else {}
    done = {"distance": 0.0, "verified": True, "forwards": 1, "backwards": 0, "seconds": 0.0}
    return row(sample, "clean", broken=broken, **done, **wrong)


def hit(sample: int, attack: str, distance: float, verified: bool) -> dict[str, Any]:
    """Return the row of a sample that an attack broke."""
    found = {"adv_pred": (sample + 1) % 4, "adv_margin": 0.25, "best_loss": 2.0, "first_broken_at": 3, "restart": 0}
    return row(sample, attack, broken=True, distance=distance, verified=verified, target=(sample + 1) % 4, **found)


def main() -> None:
    """Write the folder anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    first = [
        hit(1, STAGES[0], 0.03, True),
        hit(2, STAGES[0], 0.05, False),
        row(3, STAGES[0]),
        hit(4, STAGES[0], 0.05, False),
        hit(5, STAGES[0], 0.031, True),
    ]
    second = [hit(2, STAGES[1], 0.0305, True), row(3, STAGES[1]), row(4, STAGES[1]), hit(5, STAGES[1], 0.02, True)]
    with Writer.create(FOLDER, new_manifest(IDENTITY, ENVIRONMENT)) as writer:
        writer.append(pa.Table.from_pylist([clean(i, broken=i == 0) for i in range(6)], schema=ROWS))
        ids = np.array([1, 2, 4, 5])
        writer.append(pa.Table.from_pylist(first, schema=ROWS), ids, X[ids] + np.float32(1 / 64))
        ids = np.array([2, 5])
        writer.append(pa.Table.from_pylist(second, schema=ROWS), ids, X[ids] + np.float32(1 / 128))
        checks = [{"name": "clean-accuracy", "level": "ok", "message": "as expected"}]
        writer.update(finished=True, wall_seconds=1.5, checks=checks, notes=["9 targets reduced to 3: 4 classes."])
    (FOLDER / ".lock").unlink()


if __name__ == "__main__":
    main()
