"""Intervals against published and other implementations' ones; draws that depend on their key alone."""

import numpy as np
import pytest

from brinell.analysis.intervals import (
    bootstrap,
    independent_difference,
    mean_of_two,
    resamples,
    split_halves,
    to_plain,
    uniforms,
)
from brinell.results import Difference, Interval, Proportion


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090), ((10, 10), (0, 10), 0.6075, 1.0)],
)
def test_differences_are_those_of_newcombes_table(
    a: tuple[int, int], b: tuple[int, int], low: float, high: float
) -> None:
    """Newcombe 1998, table II, method 10."""
    found = independent_difference(Proportion(*a), Proportion(*b))
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_the_mean_of_two_is_the_difference_to_the_complement() -> None:
    """(p + q) / 2 = 1/2 + (p − (1 − q)) / 2, and so are the bounds."""
    p, q = Proportion(31, 40), Proportion(17, 50)
    gap = independent_difference(p, Proportion(q.n - q.k, q.n))
    found = mean_of_two(p, q)
    assert [found.value, found.low, found.high] == pytest.approx([0.5 + v / 2 for v in (gap.value, gap.low, gap.high)])
    assert found.n == 90


def test_bootstrap_is_scipys_basic_one() -> None:
    stats = pytest.importorskip("scipy.stats")
    v = np.random.default_rng(0).exponential(size=80)
    found = bootstrap(lambda at: float(v[at].std()), len(v), 0, "test", draws=4000)
    theirs = stats.bootstrap(
        (v,), np.std, method="basic", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert found.value == pytest.approx(v.std())
    assert found.low == pytest.approx(theirs.low, abs=0.06 * width)
    assert found.high == pytest.approx(theirs.high, abs=0.06 * width)


def test_bounds_keep_to_what_is_possible_and_hold_the_value() -> None:
    v = np.abs(np.linspace(-1, 1, 30))
    found = bootstrap(lambda at: float(v[at].max()), 30, 0, "test", least=0.5, most=1.0, draws=50)
    assert found.value == 1.0 and 0.5 <= found.low <= 1.0 == found.high


def test_draws_depend_on_seed_and_purpose() -> None:
    first = list(resamples(50, 0, "a", 3))
    assert all(np.array_equal(x, y) for x, y in zip(first, resamples(50, 0, "a", 3), strict=True))
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], next(resamples(50, 1, "a")))
    assert not np.array_equal(first[0], next(resamples(50, 0, "b")))
    assert all(u.min() >= 0 and u.max() < 1 and len(u) == 50 for u in uniforms(50, 0, "a", 3))


def test_resampled_places_are_even() -> None:
    """Every place is drawn 300 times in the mean; the largest of twenty is within five deviations."""
    counts = sum(np.bincount(at, minlength=20) for at in resamples(20, 0, "even", 300))
    assert np.abs(counts - 300).max() < 5 * np.sqrt(300)


def test_halves_belong_to_the_samples_not_to_their_order() -> None:
    ids = np.arange(100, 121)
    chosen = split_halves(ids, 3, "test")
    assert chosen.sum() == 10
    assert np.array_equal(split_halves(ids[::-1].copy(), 3, "test")[::-1], chosen)
    assert not np.array_equal(split_halves(ids, 4, "test"), chosen)


def test_plain_data_has_no_nan() -> None:
    found = to_plain({"a": (Proportion(0, 0), Interval(float("nan"), 0.0, 1.0, 2)), "b": Difference(0.1, 0.0, 0.2)})
    assert found["a"][0]["value"] is None and found["a"][1]["value"] is None
    assert found["b"] == {"value": 0.1, "low": 0.0, "high": 0.2}
