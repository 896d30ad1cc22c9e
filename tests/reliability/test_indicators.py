"""The indicators on paths written out by hand."""

import math

import pytest
import torch
from torch import nn

from brinell.core.criterion import Misclassified
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.reliability.probes import indicators
from brinell.reliability.probes.indicators import Trajectories, still_growing

NAN = math.nan


def paths(loss, success=None, slope=None, wrong=None) -> Trajectories:
    """One leg per sample unless nested deeper; the margin is the loss."""
    values = torch.tensor(loss)
    values = values[:, None] if values.ndim == 2 else values
    none = torch.zeros_like(values, dtype=torch.bool)

    def mask(v):
        return none if v is None else torch.tensor(v).view_as(none)

    slopes = torch.ones_like(values) if slope is None else torch.tensor(slope).view_as(values)
    return Trajectories(values, values, mask(success), mask(wrong), slopes)


@pytest.mark.parametrize(
    ("loss", "growing"),
    [
        ([0.0, 1.0, 2.0, 3.0], True),
        ([5.0] * 12, False),
        ([0.0] * 5 + [1.0] * 10, False),
        # The best value so far: a late swing below it is not progress.
        ([0.0, 10.0] + [10.0, 0.0] * 8, False),
        # 5 % of the path's own range in the last ten values, whatever the range.
        ([0.0] + [94.9] * 5 + [95.1] * 9 + [100.0], False),
        ([0.0] + [94.0] * 10 + [100.0], True),
        ([0.0] + [0.94] * 10 + [1.0], True),
        ([NAN, 1.0], False),
        ([], False),
    ],
)
def test_still_growing(loss, growing):
    assert still_growing(torch.tensor(loss)) == growing


def test_incomplete_only_where_the_sample_stands_and_on_the_run_that_came_closest():
    up, flat = [float(v) for v in range(20)], [0.0] * 10 + [30.0] * 10
    assert indicators.incomplete_optimisation(paths([up, up, flat, flat])).value == 0.5
    done = [[False] * 19 + [True]] * 2 + [[False] * 20] * 2
    assert indicators.incomplete_optimisation(paths([up, up, flat, flat], done)).value == 0
    # The second run of each sample is closer to success and has come to rest.
    assert indicators.incomplete_optimisation(paths([[up, flat], [up, flat]])).level == "ok"
    assert indicators.incomplete_optimisation(paths([[flat, [v + 30 for v in up]]] * 2)).level == "fail"


def test_silent_success_compares_the_end_with_the_way():
    loss = [[0.0, 1.0, 0.0]] * 4
    on_the_way, at_the_end = [False, True, False], [False, True, True]
    t = paths(loss, [on_the_way, at_the_end, [False] * 3, on_the_way])
    assert indicators.silent_success(t, keeps_best=False).value == 0.5
    assert indicators.silent_success(t, keeps_best=True).level == "ok"
    # Runs of different lengths: the end is the last point that was asked about.
    short = paths([[1.0, 2.0, NAN]] * 2, [[False, True, False]] * 2)
    assert indicators.silent_success(short, keeps_best=False).value == 0


def test_gradients_matter_where_the_class_is_still_right():
    t = paths([[0.0, 0.0]] * 4, slope=[[0.0, 1.0], [0.5, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert indicators.unavailable_gradients(t).value == 0.5
    fooled = paths([[0.0]] * 2, slope=[[0.0], [0.0]], wrong=[[True], [True]])
    assert indicators.unavailable_gradients(fooled).level == "ok"
    blind = paths([[0.0]] * 2, slope=[[NAN], [NAN]])
    assert indicators.unavailable_gradients(blind).value is None


def test_one_sample_alone_raises_no_objection():
    up, flat = [float(v) for v in range(20)], [0.0] * 10 + [30.0] * 10
    assert indicators.incomplete_optimisation(paths([up] + [flat] * 7)).level == "ok"
    assert indicators.incomplete_optimisation(paths([up] * 2 + [flat] * 6)).level == "warn"
    assert indicators.unconstrained_failure(1.0, 0.125, 8).level == "ok"


class Formula(nn.Module):
    """Logits (0, f(x))."""

    def __init__(self, f) -> None:
        super().__init__()
        self.f = f

    def forward(self, x):
        z = self.f(x)
        return torch.stack([torch.zeros_like(z), z], 1)


def stability(f, x):
    y = torch.zeros(len(x), dtype=torch.long)
    return indicators.stability(Oracle(wrap(Formula(f).eval()), 8), Misclassified(), x, y, seed=0, neighbours=400)


def test_stability_of_a_slope_in_closed_form():
    """f = s·x in one dimension: E|s·d| for d uniform in ±r/2 is s·r/4; no part of it lacks direction."""
    x = torch.full((4, 1), -0.5) + 1
    found = stability(lambda v: -20 * v[:, 0], x)
    assert found.value == pytest.approx(20 * indicators.RADIUS / 4 / 10, rel=0.05)
    assert found.rough < 1e-4
    steep = stability(lambda v: -2000 * (v[:, 0] - 0.499), x)
    assert steep.value > indicators.UNSTABLE
    assert indicators.unstable_predictions(steep).level == "ok"


def test_noise_has_more_without_direction_than_with():
    """Of three independent values n0, n1, n2 the variance of n1 + n2 − 2 n0 is three times that of n1 − n2."""
    found = stability(lambda v: -1 + 0.5 * torch.sin(1e5 * v[:, 0]), torch.linspace(0.1, 0.9, 40)[:, None])
    assert found.rough == pytest.approx(3**0.5 / (1 + 3**0.5), abs=0.06)
    assert indicators.unstable_predictions(found).level != "ok"


def test_what_both_models_say():
    assert indicators.transfer_failure(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, -1, 0]), same=False).value == 0.5
    assert indicators.transfer_failure(torch.zeros(0), torch.zeros(0), same=True).level == "ok"
