"""Accuracies by hand; pairs where the samples are the same."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell.analysis.intervals import independent_difference
from brinell.analysis.shift import Shift, ShiftedData, beyond, effective, shift
from brinell.errors import InputError
from brinell.results import Difference, Proportion, paired_difference

RIGHT, WRONG = [1.0, 0.0], [0.0, 1.0]


def test_pairs_by_hand(worlds: Any) -> None:
    """At home 7 of 10 right; elsewhere the same samples, of which 5 stay right and one becomes so."""
    model = worlds.look_up(torch.tensor([RIGHT] * 7 + [WRONG] * 3 + [RIGHT] * 5 + [WRONG] * 2 + [RIGHT] + [WRONG] * 2))
    there = worlds.places(10, 10, ids=range(10))
    found = shift(model, worlds.places(0, 10), {"there": there, "other": worlds.places(10, 8, ids=range(50, 58))})
    same, other = found.sets
    assert same.paired and same.accuracy.k == 6 and found.home.k == 7
    assert same.gap == paired_difference(5, 1, 2, 2)
    assert not other.paired and other.gap == independent_difference(Proportion(6, 8), Proportion(7, 10))
    assert found.mean == pytest.approx((0.6 + 0.75) / 2) and found.worst is same


def test_the_order_of_the_samples_does_not_matter(worlds: Any) -> None:
    model = worlds.look_up(torch.tensor([RIGHT, WRONG, RIGHT, RIGHT]))
    home = worlds.places(0, 4)
    turned = brinell.Problem(home.x.flip(0), home.y.flip(0), home.ids.flip(0))
    found = shift(model, home, {"turned": turned}).sets[0]
    assert found.paired and found.gap == paired_difference(3, 0, 0, 1)


def test_other_labels_are_other_samples(worlds: Any) -> None:
    model = worlds.look_up(torch.tensor([RIGHT, WRONG, RIGHT, RIGHT]))
    found = shift(model, worlds.places(0, 4), {"relabelled": worlds.places(0, 4, torch.tensor([0, 1, 0, 0]))}).sets[0]
    assert not found.paired and found.accuracy.k == 4


def sure(right: int, n: int = 100) -> list[list[float]]:
    return [RIGHT] * right + [WRONG] * (n - right)


def test_effective_robustness_by_hand(worlds: Any) -> None:
    """Baselines with odds 1 and 9 at home, 1/4 and 9/4 there: odds shrink by 4, so 4 at home are 1 there, or 50 %."""
    home, there = worlds.places(0, 100), worlds.places(100, 100, ids=range(500, 600))
    ordinary = [worlds.look_up(torch.tensor(sure(50) + sure(20))), worlds.look_up(torch.tensor(sure(90) + sure(69)))]
    model = worlds.look_up(torch.tensor(sure(80) + sure(65)))
    found = shift(model, home, {"there": there}, baselines=ordinary).sets[0]
    odds = math.exp(math.log(1 / 4) + math.log(69 / 31 * 4) * math.log(4) / math.log(9))
    assert found.effective is not None
    assert found.effective.value == pytest.approx(0.65 - odds / (1 + odds))
    assert found.effective.value == pytest.approx(0.15, abs=0.01)
    assert found.effective.low < found.effective.value < found.effective.high
    again = shift(model, home, {"there": there}, baselines=ordinary)
    assert again.sets[0] == found
    assert again.findings().tables[0].columns[-1] == "effective robustness, points"
    assert len(shift(model, home, {"there": there}).findings().tables[0].columns) == 5


def test_one_of_the_baselines_has_no_effective_robustness(worlds: Any) -> None:
    """Two baselines lie on their own line, in every draw: the interval is a point."""
    home, there = worlds.places(0, 100), worlds.places(100, 100)
    weak, strong = (worlds.look_up(torch.tensor(sure(a) + sure(b))) for a, b in ((50, 30), (90, 60)))
    found = shift(weak, home, {"there": there}, baselines=[weak, strong]).sets[0].effective
    assert found is not None and (found.value, found.low, found.high) == pytest.approx((0, 0, 0), abs=1e-9)
    assert shift(weak, home, {"there": there}).sets[0].effective is None


def test_intervals_of_effective_robustness_are_as_wide_as_it_scatters() -> None:
    """Fresh samples of models with known chances to be right: the deviation is a quarter of the width."""
    generator, n, home, there = np.random.default_rng(0), 300, np.array([0.7, 0.5, 0.8]), np.array([0.6, 0.4, 0.6])
    fresh = [beyond(generator.binomial(n, home) / n, generator.binomial(n, there) / n, n, n) for _ in range(2000)]
    near, far = (generator.uniform(size=(3, n)) < p[:, None] for p in (home, there))
    found = effective(near, far, False, "test", 0)
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(fresh), rel=0.2)


def test_refusals(worlds: Any) -> None:
    model = worlds.look_up(torch.zeros(4, 2))
    with pytest.raises(InputError, match="two baselines"):
        shift(model, worlds.places(0, 4), {"same": worlds.places(0, 4)}, baselines=[model])
    with pytest.raises(InputError, match="different accuracies"):
        shift(model, worlds.places(0, 4), {"same": worlds.places(0, 4)}, baselines=[model, model])
    with pytest.raises(InputError, match="at least one shifted"):
        shift(model, worlds.places(0, 4), {})
    with pytest.raises(InputError, match=r"labels in 0\.\.1"):
        shift(model, worlds.places(0, 4), {"far": worlds.places(0, 4, torch.tensor([0, 1, 2, 0]))})


def test_the_sentence_says_how_many_samples_and_averages_only_several() -> None:
    home, gap = Proportion(3, 4), Difference(-0.25, -0.6, 0.2)
    sets = tuple(ShiftedData(name, Proportion(k, 8), gap, False) for name, k in (("fog", 4), ("snow", 2)))
    assert " and on fog: 50.0 [21.5, 78.5] % (n = 8)" in Shift("m", home, sets[:1]).findings().summary
    said = Shift("m", home, sets).findings().summary
    assert "37.5 % on average over 2 others; worst on snow: 25.0 [7.1, 59.1] % (n = 8)" in said
