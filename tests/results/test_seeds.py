"""Several seeds: each Run is the Run of its seed, and mean and deviation follow from them."""

import math
import statistics
from pathlib import Path

import pytest

import brinell
from brinell.errors import InputError
from brinell.leaderboard.benchmark import benchmark_seeds
from brinell.results import Run


def test_runs_mean_and_deviation(tmp_path: Path) -> None:
    data, threat = brinell.data.load("demo", 40), brinell.Linf(0.06)
    found = brinell.evaluate_seeds("demo", data, threat, "pgd20", seeds=3, seed=5, out=tmp_path, progress=False)
    assert [run.identity.seed for run in found.runs] == [5, 6, 7]
    alone = brinell.evaluate("demo", data, threat, "pgd20", seed=6, progress=False)
    assert found.runs[1].survivors().tolist() == alone.survivors().tolist()
    values = [Run.open(tmp_path / f"seed-{s}").robust_accuracy.value for s in (5, 6, 7)]
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.deviation == pytest.approx(statistics.stdev(values), abs=1e-12)
    # Score interval: the p at distance 1.96 standard errors from the mean, for n = 40 samples, not 3 · 40.
    robust = found.robust_accuracy
    for p in (robust.low, robust.high):
        assert abs(p - found.mean) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 40), rel=1e-5)
    assert "n = 40 samples, mean over 3 seeds" in str(found) and "±" not in str(found)
    spread = min(values) < max(values)
    assert (f"from {100 * min(values):.2f} to" in str(found)) == spread
    assert ("the same with every seed" in str(found)) == (not spread)
    kept = set.intersection(*(set(run.survivors().tolist()) for run in found.runs))
    assert (found.worst.k, found.worst.n) == (len(kept), 40) and found.worst.value <= min(values)
    assert [row[0] for row in found.findings().tables[0].rows] == [5, 6, 7]
    again = brinell.evaluate_seeds(
        "demo", data, threat, "pgd20", seeds=3, seed=5, out=tmp_path, resume=True, progress=False
    )
    assert again.accuracies == found.accuracies


def test_one_seed_has_no_deviation_and_none_is_refused() -> None:
    data = brinell.data.load("demo", 8)
    one = brinell.evaluate_seeds("demo", data, brinell.Linf(0.1), "fgsm", seeds=1, progress=False)
    assert one.deviation != one.deviation and one.mean == one.runs[0].robust_accuracy.value
    own = one.runs[0].robust_accuracy
    assert (one.robust_accuracy.low, one.robust_accuracy.high) == (own.low, own.high)
    assert "nan" not in str(one) and str(one).endswith("with one seed") and len(one.measures()) == 1
    with pytest.raises(InputError, match=r"--seeds 5"):
        brinell.evaluate_seeds("demo", data, brinell.Linf(0.1), "fgsm", seeds=0, progress=False)


def test_benchmark_with_seeds(tmp_path: Path) -> None:
    records, runs = benchmark_seeds("demo", "demo", seeds=2, n=4, eps=0.5, out=tmp_path, progress=False)
    assert [r.seed for r in records] == [0, 1] and [r.autoattack for r in records] == [0.0, 0.0]
    assert runs.mean == 0.0 and (tmp_path / "seed-1" / "record.json").exists()
    with pytest.raises(InputError, match=r"seeds"):
        benchmark_seeds("demo", "cifar10", "corruptions", seeds=2)
