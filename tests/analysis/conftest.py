"""Models that look their logits up, and Runs written by hand: everything about them is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.core.model import Classifier
from brinell.ops import rng
from brinell.results import ROWS, Run, Writer, new_manifest

PLACES = 2**16


class LookUp(nn.Module):
    """The logits of sample i, which is written into the input as i / 2^16."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[(x[:, 0] * PLACES).round().long()]


def look_up(logits: Tensor, name: str = "look-up") -> Classifier:
    return brinell.wrap(LookUp(logits).eval(), name=name, differentiable=False)


def places(first: int, n: int, y: Tensor | None = None, ids: Any = None) -> brinell.Problem:
    """The samples first … first + n − 1 of a model that looks up."""
    x = torch.arange(first, first + n)[:, None] / PLACES
    return brinell.Problem(x, torch.zeros(n, dtype=torch.long) if y is None else y, ids)


def normal(seed: int, *shape: int) -> Tensor:
    return rng.normal(rng.keys(seed, torch.arange(1)), shape)[0]


def uniform(seed: int, *shape: int) -> Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(1)), shape)[0]


def drawn_labels(logits: Tensor, seed: int) -> Tensor:
    """Labels with the very probabilities that the logits claim."""
    edges = logits.double().softmax(1).cumsum(1)
    return (uniform(seed, len(logits)).double()[:, None] >= edges).sum(1).clamp(max=logits.shape[1] - 1)


def run_by_hand(path: Path, labels: Sequence[int], words: Sequence[str]) -> Run:
    """A Run with one stage: "w" misclassified, "x" broken by the attack, "." robust."""
    identity = {
        "threat": {"norm": "Linf", "eps": 0.1, "box": [0, 1]},
        "goal": "misclassify",
        "plan": {"name": "one", "strength": "standard", "stages": [{"name": "one", "attack": {}, "hash": "h"}]},
        "model": {"fingerprint": "f", "name": "by hand", "classes": max(labels) + 1},
        "data": {"fingerprint": "d", "n": len(labels), "name": "by hand"},
        "seed": 0,
        "precision": "float32",
        "block": 8,
    }
    rows = []
    for i, (label, word) in enumerate(zip(labels, words, strict=True)):
        base = {
            "sample_id": i, "x_sha256": f"sha-{i}", "label": label, "clean_pred": label, "clean_margin": -1.0,
            "attack_hash": "h", "seed": 0, "forwards": 1, "backwards": 0, "seconds": 0.0, "precision": "float32",
            "device": "cpu", "flags": [],
        }  # fmt: skip
        rows.append({**base, "attack": "clean", "broken": word == "w", "verified": True, "distance": 0.0})
        if word != "w":
            broken = word == "x"
            rows.append({**base, "attack": "one", "broken": broken, "verified": True if broken else None})
    table = pa.Table.from_pylist(rows, schema=ROWS)
    broken = [i for i, word in enumerate(words) if word == "x"]
    with Writer.create(path, new_manifest(identity, {"brinell": "0"})) as writer:
        writer.append(table, np.array(broken, np.int64), np.zeros((len(broken), 2), np.float32))
        writer.update(finished=True)
    return Run.open(path)


class Worlds:
    """The helpers above, as one fixture."""

    look_up = staticmethod(look_up)
    places = staticmethod(places)
    normal = staticmethod(normal)
    uniform = staticmethod(uniform)
    drawn_labels = staticmethod(drawn_labels)
    run_by_hand = staticmethod(run_by_hand)


@pytest.fixture(scope="session")
def worlds() -> type[Worlds]:
    return Worlds
