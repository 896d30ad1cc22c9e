"""Random small networks, attacked and bounded at the same radius: benchmarks/soundness.py for a few seeds."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import soundness


def test_nothing_is_certified_and_broken() -> None:
    with torch.random.fork_rng(devices=[]):
        found = [soundness.tried(seed) for seed in range(3)]
    assert sum(f.certified for f in found) >= 3 and sum(f.broken for f in found) >= 3
    assert all(f.both == 0 and f.below == 0 for f in found)
