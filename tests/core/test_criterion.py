"""Goals: the margin is positive exactly where the goal is reached."""

import pytest
import torch

from brinell.core.criterion import Criterion, Evades, Misclassified, Targeted, Triggers
from brinell.core.model import Output
from brinell.errors import ModelError
from brinell.ops import rng

CRITERIA = [Misclassified(), Targeted()]


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda g: g.name)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_positive_exactly_where_reached(criterion, classes):
    key = rng.keys(0, torch.arange(300))
    z = rng.normal(key, (classes,))
    y = rng.integers(rng.fold(key, 1), classes)
    t = (y + 1) % classes
    reached = z.argmax(1) != y if isinstance(criterion, Misclassified) else z.argmax(1) == t
    assert isinstance(criterion, Criterion)
    assert torch.equal(criterion.margin(Output(z), y, t) > 0, reached)
    assert torch.equal(criterion.reached(Output(z), y, t), reached)
    assert 0 < reached.sum() < 300


def test_of_tied_logits_the_model_s_own_decision_counts():
    z = Output(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    y, t = torch.tensor([0, 1]), torch.tensor([1, 0])
    for criterion in CRITERIA:
        assert criterion.margin(z, y, t).tolist() == [0, 0]
        assert criterion.reached(z, y, t).tolist() == [False, True], "the first of equal classes is predicted"


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda g: g.name)
@pytest.mark.parametrize("ill", [torch.nan, torch.inf, -torch.inf])
def test_answers_that_are_no_numbers_reach_nothing(criterion, ill):
    z = torch.tensor([[0.0, ill, 2.0], [ill, 1.0, 2.0], [ill] * 3, [0.0, 1.0, ill]])
    for y in range(3):
        for t in range(3):
            assert not criterion.reached(Output(z), torch.full((4,), y), torch.full((4,), t)).any()


def test_values():
    z = Output(torch.tensor([[1.0, 4.0, 2.5]]))
    y, t = torch.tensor([0]), torch.tensor([2])
    assert Misclassified().margin(z, y, t).item() == 3.0
    assert Targeted().margin(z, y, t).item() == -1.5


@pytest.mark.parametrize(("criterion", "accepted"), [(Evades(), True), (Triggers(), False)], ids=["evade", "trip"])
def test_a_detector_is_the_second_half_of_the_goal(criterion, accepted):
    """All four combinations of right and wrong, accepted and rejected; the margin is the half that is further off."""
    z = torch.tensor([[3.0, 1.0]] * 2 + [[1.0, 5.0]] * 2)
    out = Output(z, torch.tensor([-0.5, 0.5, -0.5, 0.5]))
    y = torch.zeros(4, dtype=torch.long)
    assert criterion.reached(out, y, y).tolist() == [False, False, accepted, not accepted]
    half = [0.5, -0.5, 0.5, -0.5] if accepted else [-0.5, 0.5, -0.5, 0.5]
    assert criterion.margin(out, y, y).tolist() == [min(m, h) for m, h in zip([-2, -2, 4, 4], half, strict=True)]


def test_the_two_goals_share_out_what_is_misclassified():
    key = rng.keys(0, torch.arange(300))
    z, y = rng.normal(key, (3,)), rng.integers(rng.fold(key, 1), 3)
    out = Output(z, rng.integers(rng.fold(key, 2), 3).float() - 1)
    wrong = Misclassified().reached(out, y, y)
    evaded, tripped = Evades().reached(out, y, y), Triggers().reached(out, y, y)
    assert torch.equal(evaded | tripped, wrong) and not (evaded & tripped).any() and evaded.any() and tripped.any()


@pytest.mark.parametrize("criterion", [Evades(), Triggers()], ids=lambda g: g.name)
def test_no_number_is_no_score_and_no_detector_is_an_error(criterion):
    y = torch.zeros(1, dtype=torch.long)
    assert not criterion.reached(Output(torch.tensor([[0.0, 1.0]]), torch.tensor([torch.nan])), y, y).any()
    with pytest.raises(ModelError, match="a detector"):
        criterion.margin(Output(torch.tensor([[0.0, 1.0]])), y, y)
