"""Goals: the margin is positive exactly where the goal is reached."""

import pytest
import torch

from brinell.core.classifier import Output
from brinell.core.goal import Goal, HitClass, Misclassify
from brinell.ops import rng

GOALS = [Misclassify(), HitClass()]


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g.name)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_positive_exactly_where_reached(goal, classes):
    key = rng.keys(0, torch.arange(300))
    z = rng.normal(key, (classes,))
    y = rng.integers(rng.fold(key, 1), classes)
    t = (y + 1) % classes
    reached = z.argmax(1) != y if isinstance(goal, Misclassify) else z.argmax(1) == t
    assert isinstance(goal, Goal)
    assert torch.equal(goal.margin(Output(z), y, t) > 0, reached)
    assert 0 < reached.sum() < 300


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g.name)
def test_ties_and_nan_are_no_success(goal):
    z = torch.tensor([[1.0, 1.0, 0.0], [torch.nan, 1.0, 2.0], [torch.nan] * 3])
    margin = goal.margin(Output(z), torch.tensor([0, 0, 0]), torch.tensor([1, 1, 1]))
    assert margin[0] == 0 and not (margin > 0)[[0, 2]].any()
    assert not (margin > 0)[1]


def test_values():
    z = Output(torch.tensor([[1.0, 4.0, 2.5]]))
    y, t = torch.tensor([0]), torch.tensor([2])
    assert Misclassify().margin(z, y, t).item() == 3.0
    assert HitClass().margin(z, y, t).item() == -1.5
