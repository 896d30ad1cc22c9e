import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from brinell.errors import InputError
from brinell.results import Proportion, mcnemar, paired_difference, upper_bound, wilson
from brinell.results.statistics import hidden

pairs = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
counts = st.integers(0, 60)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_known_values(k: int, n: int, low: float, high: float) -> None:
    assert wilson(k, n) == pytest.approx((low, high), abs=6e-5)


@given(pairs, st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_agrees_with_scipy(pair: tuple[int, int], confidence: float) -> None:
    k, n = pair
    if n:
        expected = stats.binomtest(k, n).proportion_ci(confidence, "wilson")
        assert wilson(k, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(pairs)
def test_a_proportion_lies_in_its_interval(pair: tuple[int, int]) -> None:
    p = Proportion(*pair)
    assert 0 <= p.low <= p.high <= 1
    if p.n:
        assert p.low <= float(p) <= p.high


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("n", [50, 1000])
def test_wilson_covers_the_truth_about_as_often_as_it_says(p: float, n: int) -> None:
    """Exact coverage, summed over all outcomes; Wilson's interval is near its level on average, not at every p."""
    k = np.arange(n + 1)
    inside = [low <= p <= high for low, high in (wilson(int(i), n) for i in k)]
    assert 0.92 < stats.binom.pmf(k, n, p)[inside].sum() < 0.98


def test_the_text_of_a_proportion() -> None:
    assert str(Proportion(478, 1000)) == "47.8 % [44.7, 50.9], n = 1,000"
    assert str(Proportion(0, 0)) == "nan % [0.0, 100.0], n = 0"
    assert math.isnan(Proportion(0, 0))


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    for call in (Proportion, wilson, upper_bound):
        with pytest.raises(InputError, match=f"k={k}, n={n}"):
            call(k, n)
    with pytest.raises(InputError):
        paired_difference(1, k, n, -1)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_in_per_cent_is_refused(confidence: float) -> None:
    for call in (wilson, upper_bound):
        with pytest.raises(InputError, match=r"0\.95"):
            call(1, 2, confidence)


@given(counts, counts)
def test_mcnemar_is_the_exact_binomial_test(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-9) == mcnemar(c, b)


def test_mcnemar_of_many_pairs_stays_finite() -> None:
    assert mcnemar(9900, 10100) == pytest.approx(stats.binomtest(9900, 20000).pvalue, rel=1e-6)
    assert mcnemar(0, 5000) == 0.0


@given(pairs, st.sampled_from([0.9, 0.95, 0.999]))
@settings(deadline=None)
def test_the_upper_bound_is_clopper_pearson(pair: tuple[int, int], confidence: float) -> None:
    k, n = pair
    expected = stats.beta.ppf(confidence, k + 1, n - k) if k < n else 1.0
    assert upper_bound(k, n, confidence) == pytest.approx(expected, abs=1e-9)


def test_the_upper_bound_of_a_large_sample() -> None:
    assert upper_bound(30_000, 100_000) == pytest.approx(stats.beta.ppf(0.95, 30_001, 70_000), abs=1e-9)


@given(counts, counts, counts, counts)
def test_the_paired_difference_is_antisymmetric_and_bounded(both: int, a: int, b: int, neither: int) -> None:
    if both + a + b + neither:
        forth, back = paired_difference(both, a, b, neither), paired_difference(both, b, a, neither)
        mirrored = (-back.value, -back.high, -back.low)
        assert (forth.value, forth.low, forth.high) == pytest.approx(mirrored)
        assert -1 - 1e-12 <= forth.low <= forth.value <= forth.high <= 1 + 1e-12


def test_the_paired_difference_of_a_known_table() -> None:
    found = paired_difference(36, 12, 2, 0)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0569296, 0.3404276), abs=1e-7)


def test_the_paired_difference_covers_the_truth() -> None:
    n, p = 60, (0.5, 0.2, 0.1, 0.2)
    draws = np.random.default_rng(0).multinomial(n, p, size=2000)
    intervals = [paired_difference(*map(int, draw)) for draw in draws]
    assert 0.93 < np.mean([interval.low <= 0.1 <= interval.high for interval in intervals]) < 0.98


def test_no_samples_have_no_difference() -> None:
    with pytest.raises(InputError):
        paired_difference(0, 0, 0, 0)


def by_trying(k: int, m: int, population: int, confidence: float) -> tuple[int, int]:
    """Every number of marked items at which neither tail that holds k is improbable."""
    possible = range(k, population - m + k + 1)
    low = [c for c in possible if stats.hypergeom.sf(k - 1, population, c, m) > 1 - confidence]
    high = [c for c in possible if stats.hypergeom.cdf(k, population, c, m) > 1 - confidence]
    return min(low), max(high)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
@settings(deadline=None, max_examples=60)
def test_hidden_items_against_trying_every_number(size: tuple[int, int], data: st.DataObject) -> None:
    population, m = size
    k = data.draw(st.integers(0, m))
    # Not round, so that no tail is exactly as large as what is left: rounding would decide.
    for confidence in (0.9013, 0.9507, 0.9903):
        assert hidden(k, m, population, confidence) == by_trying(k, m, population, confidence)


@pytest.mark.parametrize(("k", "m", "population"), [(0, 125, 1000), (3, 125, 1000), (20, 700, 5000), (1, 1, 2)])
def test_hidden_items_of_larger_populations(k: int, m: int, population: int) -> None:
    assert hidden(k, m, population) == by_trying(k, m, population, 0.95)


def test_hidden_items_at_the_ends() -> None:
    assert hidden(0, 0, 0) == (0, 0)
    assert hidden(0, 0, 9) == (0, 9), "nobody looked"
    assert hidden(4, 9, 9) == (4, 4), "everybody was looked at"
    assert hidden(9, 9, 20)[1] == 20


@pytest.mark.parametrize(("k", "m"), [(0, 60), (2, 60), (30, 100)])
def test_hidden_items_of_a_huge_population_are_a_binomial_s(k: int, m: int) -> None:
    population = 4_000_000
    low, high = hidden(k, m, population)
    assert high / population == pytest.approx(upper_bound(k, m), abs=1e-5)
    assert low / population == pytest.approx(1 - upper_bound(m - k, m) if k else 0.0, abs=1e-5)


@pytest.mark.parametrize(("m", "population"), [(7, 30), (20, 160)])
def test_more_found_means_more_hidden(m: int, population: int) -> None:
    lows, highs = zip(*(hidden(k, m, population) for k in range(m + 1)), strict=True)
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs)
    assert all(low >= k and high <= population - m + k for k, (low, high) in enumerate(zip(lows, highs, strict=True)))


@pytest.mark.parametrize("counts", [(2, 1, 5), (0, 6, 5), (-1, 3, 5)])
def test_impossible_draws_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(InputError):
        hidden(*counts)
