"""AttackBench's optimality against numerical integration of its definition, and its special cases."""

import math

import numpy as np
import pytest

import brinell
from brinell.curves import Curve


def made(distances: list[float], norm: str = "L2") -> Curve:
    return Curve(norm, np.arange(len(distances)), np.asarray(distances, dtype=np.float64))


def integrated(mine: Curve, best: Curve, end: float) -> float:
    """The two areas by the midpoint rule, from the robust accuracies at each radius."""
    radii = (np.arange(20_000) + 0.5) * end / 20_000

    def area(curve: Curve) -> float:
        return sum(curve.at(float(r)).value - curve.at(0.0).value for r in radii[::20])

    return area(mine) / area(best)


def test_it_is_the_ratio_of_the_areas() -> None:
    rng = np.random.default_rng(0)
    best = np.where(rng.uniform(size=40) < 0.2, 0.0, rng.uniform(0.1, 2.0, 40))
    worse = best * rng.uniform(1.0, 2.0, 40)
    worse[5:8] = np.where(best[5:8] > 0, math.inf, 0.0)
    mine, strong = made(worse.tolist()), made(best.tolist())
    share = mine.optimality(strong)
    assert share == pytest.approx(integrated(mine, strong, float(best.max())), abs=2e-3)
    assert 0.3 < share < 0.9 and strong.optimality(mine) == 1.0 == strong.optimality()


def test_the_best_curve_takes_the_smaller_distance_of_every_sample() -> None:
    a, b = made([1.0, 4.0, 4.0]), made([2.0, 2.0, 4.0])
    # Best distances 1, 2, 4, so ε0 = 4: areas 3 + 2 against 3 + 0 and 2 + 2.
    assert (a.optimality(b), b.optimality(a)) == (3 / 5, 4 / 5)
    c = made([3.0, 3.0, 1.0])
    assert a.optimality(b, c) == a.optimality(b.joined(c))


def test_an_attack_that_breaks_nothing_and_samples_that_nothing_breaks() -> None:
    inf = math.inf
    assert made([0.0, inf, inf, inf]).optimality(made([0.0, 1.0, 2.0, inf])) == 0.0
    assert made([1.0, inf]).optimality(made([1.0, inf])) == 1.0
    assert made([1.0, inf]).optimality(made([1.0, 1.0])) == 0.5
    with pytest.raises(brinell.InputError, match="known distance"):
        made([0.0, inf]).optimality()
    with pytest.raises(brinell.InputError, match="misclassifies"):
        made([0.0, 1.0]).optimality(made([1.0, 1.0]))
    with pytest.raises(brinell.InputError, match="in L2"):
        made([1.0, 2.0]).optimality(made([1.0, 2.0], "Linf"))
