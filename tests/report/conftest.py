"""Runs of images whose every number is known, made without a model."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brinell.results import ROWS, Run, Writer, new_manifest

ATTACKS = ("first", "second", "third")


class Images:
    """What stands for a Problem: gives out ids and inputs in chunks."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.ids = x, np.arange(len(x))

    def chunks(self, size: int) -> Any:
        for i in range(0, len(self.x), size):
            yield SimpleNamespace(ids=self.ids[i : i + size], x=self.x[i : i + size])


def make_images(n: int, shape: tuple[int, ...] = (1, 8, 8)) -> Images:
    """Images of keyed noise, in float32."""
    return Images(np.random.default_rng(7).random((n, *shape), dtype=np.float32))


def make_run(
    path: Path,
    images: Images,
    classes: int = 5,
    eps: float | None = 0.1,
    finished: bool = True,
    individual: bool = False,
    **changes: Any,
) -> Run:
    """A Run of three attacks: of ten samples one is wrong by itself, one falls to each attack, six stand.

    With `individual` later attacks are tried on what earlier ones broke, and break it too.
    """
    n = len(images.x)
    fate = np.arange(n) % 10  # 0: wrong; 1, 2, 3: falls to that attack; others stand
    rng = np.random.default_rng(3)
    margin, change = rng.normal(-2, 1, n), rng.choice([-1, 1], images.x.shape).astype(np.float32) * np.float32(0.1)
    rows, found = [], []
    for i in range(n):
        label = int(i // 2) % classes
        wrong = fate[i] == 0
        base = {
            "sample_id": i,
            "x_sha256": hashlib.sha256(images.x[i].tobytes()).hexdigest(),
            "label": label,
            "clean_pred": label + 1 if wrong else label,
            "clean_margin": abs(margin[i]) if wrong else -abs(margin[i]),
            "seed": 0,
            "precision": "float32",
            "device": "cpu",
            "flags": [],
        }
        rows.append(
            {
                **base, "attack": "clean", "attack_hash": "", "broken": bool(wrong), "verified": bool(wrong) or None,
                "distance": 0.0, "forwards": 1, "backwards": 0, "seconds": 0.0,
            }
        )  # fmt: skip
        for j, attack in enumerate(ATTACKS, 1):
            if wrong or (1 <= fate[i] < j <= 3 and not individual):
                continue
            fell = 1 <= fate[i] <= j
            x = np.clip(images.x[i] + change[i], 0, 1)
            told: dict[str, Any] = {"broken": False, "adv_margin": -0.5}
            if fell:
                told = {
                    "broken": True, "verified": True, "adv_pred": (label + 1) % classes, "adv_margin": 0.5,
                    "distance": float(np.abs(np.float64(x) - images.x[i]).max()), "first_broken_at": i % 7,
                }  # fmt: skip
            spent = {"forwards": 10 * j, "backwards": 9 * j, "seconds": 0.01}
            rows.append({**base, "attack": attack, "attack_hash": attack, **told, **spent})
            if fell:
                found.append((i, x))
    stages = [{"name": name, "attack": {"steps": 5}, "hash": name, "needs": "gradient"} for name in ATTACKS]
    identity: dict[str, Any] = {
        "threat": {"norm": "Linf", "eps": eps, "eps_text": str(eps), "box": [0, 1]},
        "goal": "misclassify",
        "plan": {
            "name": "three", "description": "three attacks", "citation": "Brinell 1900, Hardness & steel",
            "strength": "standard", "stages": stages,
        },
        "individual": individual,
        "model": {"fingerprint": "f00", "name": "net", "classes": classes},
        "data": {"fingerprint": "da7a", "n": n, "name": "noise"},
        "seed": 0,
        "precision": "float32",
    }  # fmt: skip
    for place, value in changes.items():
        *parents, last = place.split("__")
        inside = identity
        for parent in parents:
            inside = inside[parent]
        inside[last] = value
    with Writer.create(path, new_manifest(identity, {"brinell": "0.1.0", "git_commit": "abc"})) as writer:
        ids, x = np.array([i for i, _ in found], np.int64), np.array([x for _, x in found], np.float32)
        writer.append(pa.Table.from_pylist(rows, schema=ROWS), ids, x)
        writer.update(finished=finished, wall_seconds=1.5)
    return Run.open(path)


@pytest.fixture
def images() -> Images:
    return make_images(50)


@pytest.fixture
def run(tmp_path: Path, images: Images) -> Run:
    return make_run(tmp_path / "run", images)


@pytest.fixture
def make() -> Callable[..., Run]:
    return make_run
