"""Goals: the margin is positive exactly where the goal is reached."""

import pytest
import torch

from brinell.core.criterion import Evade, Goal, HitClass, Misclassify, Trip
from brinell.core.model import Output
from brinell.errors import ModelError
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
    assert torch.equal(goal.reached(Output(z), y, t), reached)
    assert 0 < reached.sum() < 300


def test_of_tied_logits_the_model_s_own_decision_counts():
    z = Output(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    y, t = torch.tensor([0, 1]), torch.tensor([1, 0])
    for goal in GOALS:
        assert goal.margin(z, y, t).tolist() == [0, 0]
        assert goal.reached(z, y, t).tolist() == [False, True], "the first of equal classes is predicted"


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g.name)
@pytest.mark.parametrize("ill", [torch.nan, torch.inf, -torch.inf])
def test_answers_that_are_no_numbers_reach_nothing(goal, ill):
    z = torch.tensor([[0.0, ill, 2.0], [ill, 1.0, 2.0], [ill] * 3, [0.0, 1.0, ill]])
    for y in range(3):
        for t in range(3):
            assert not goal.reached(Output(z), torch.full((4,), y), torch.full((4,), t)).any()


def test_values():
    z = Output(torch.tensor([[1.0, 4.0, 2.5]]))
    y, t = torch.tensor([0]), torch.tensor([2])
    assert Misclassify().margin(z, y, t).item() == 3.0
    assert HitClass().margin(z, y, t).item() == -1.5


@pytest.mark.parametrize(("goal", "accepted"), [(Evade(), True), (Trip(), False)], ids=["evade", "trip"])
def test_a_detector_is_the_second_half_of_the_goal(goal, accepted):
    """All four combinations of right and wrong, accepted and rejected; the margin is the half that is further off."""
    z = torch.tensor([[3.0, 1.0]] * 2 + [[1.0, 5.0]] * 2)
    out = Output(z, torch.tensor([-0.5, 0.5, -0.5, 0.5]))
    y = torch.zeros(4, dtype=torch.long)
    assert goal.reached(out, y, y).tolist() == [False, False, accepted, not accepted]
    half = [0.5, -0.5, 0.5, -0.5] if accepted else [-0.5, 0.5, -0.5, 0.5]
    assert goal.margin(out, y, y).tolist() == [min(m, h) for m, h in zip([-2, -2, 4, 4], half, strict=True)]


def test_the_two_goals_share_out_what_is_misclassified():
    key = rng.keys(0, torch.arange(300))
    z, y = rng.normal(key, (3,)), rng.integers(rng.fold(key, 1), 3)
    out = Output(z, rng.integers(rng.fold(key, 2), 3).float() - 1)
    wrong = Misclassify().reached(out, y, y)
    evaded, tripped = Evade().reached(out, y, y), Trip().reached(out, y, y)
    assert torch.equal(evaded | tripped, wrong) and not (evaded & tripped).any() and evaded.any() and tripped.any()


@pytest.mark.parametrize("goal", [Evade(), Trip()], ids=lambda g: g.name)
def test_no_number_is_no_score_and_no_detector_is_an_error(goal):
    y = torch.zeros(1, dtype=torch.long)
    assert not goal.reached(Output(torch.tensor([[0.0, 1.0]]), torch.tensor([torch.nan])), y, y).any()
    with pytest.raises(ModelError, match="a detector"):
        goal.margin(Output(torch.tensor([[0.0, 1.0]])), y, y)
