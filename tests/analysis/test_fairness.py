"""Runs written by hand: every number is known."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brinell.analysis.fairness import class_spread, fairness, relative_deviation
from brinell.errors import InputError


def test_classes_by_hand(worlds: Any, tmp_path: Path) -> None:
    words = "....", "..xw", "wwxx"
    run = worlds.run_by_hand(tmp_path / "run", [0] * 4 + [1] * 4 + [2] * 4, "".join(words))
    found = fairness(run, names=["a", "b", "c"])
    assert [(c.name, c.label, c.clean.k, c.robust.k, c.clean.n) for c in found.classes] == [
        ("a", 0, 4, 4, 4),
        ("b", 1, 3, 2, 4),
        ("c", 2, 2, 0, 4),
    ]
    # Robust: 1, 1/2, 0 with mean 1/2; clean: 1, 3/4, 1/2 with mean 3/4.
    assert found.robust.rsd is not None and found.clean.rsd is not None
    assert found.robust.rsd.value == pytest.approx(math.sqrt(1 / 6) / 0.5)
    assert found.clean.rsd.value == pytest.approx(math.sqrt(1 / 24) / 0.75)
    assert (found.worst.name, found.best.name) == ("c", "a")
    assert sum(c.robust.k for c in found.classes) == run.robust_accuracy.k
    table = found.findings().tables[0]
    assert table.rows[1] == ("b", 4, "75.0 [30.1, 95.4]", "50.0 [15.0, 85.0]")


def test_classes_without_samples_are_no_classes(worlds: Any, tmp_path: Path) -> None:
    run = worlds.run_by_hand(tmp_path / "run", [0, 0, 7], "..x")
    assert [c.label for c in fairness(run).classes] == [0, 7]
    with pytest.raises(InputError, match=r"0\.\.7"):
        fairness(run, names=["a", "b"])


def test_nothing_robust(worlds: Any, tmp_path: Path) -> None:
    found = fairness(worlds.run_by_hand(tmp_path / "run", [0, 1, 1], "xxw"))
    assert found.robust.rsd is None and found.robust.p_value == 1.0
    assert found.clean.rsd is not None and found.clean.rsd.value == pytest.approx(1 / 3)
    assert "undefined" in found.findings().summary


def test_equal_classes_are_alike() -> None:
    found = class_spread(np.array([30, 30, 30]), np.array([40, 40, 40]), 0, "test")
    assert found.rsd is not None and found.rsd.value == 0.0 and found.rsd.low == 0.0 and found.p_value == 1.0


def test_p_values_are_those_of_a_chi_square_test() -> None:
    """With classes of equal size both rest on the variance of the accuracies."""
    stats = pytest.importorskip("scipy.stats")
    n = np.array([100, 100, 100, 100])
    for right in ([50, 60, 55, 66], [50, 60, 55, 54], [20, 60, 55, 54]):
        k = np.array(right)
        theirs = stats.chi2_contingency(np.array([k, n - k]), correction=False).pvalue
        assert class_spread(k, n, 0, "test").p_value == pytest.approx(theirs, abs=0.04)


def test_intervals_have_the_width_of_redrawn_classes() -> None:
    """The deviation of the spread over fresh samples is a quarter of the interval's width, more or less."""
    generator, n = np.random.default_rng(0), np.array([200] * 6)
    p = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    fresh = [relative_deviation(generator.binomial(n, p) / n) for _ in range(2000)]
    found = class_spread((p * n).astype(int), n, 0, "test").rsd
    assert found is not None and found.low < found.value < found.high
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(fresh), rel=0.1)
