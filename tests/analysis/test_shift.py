"""Accuracies by hand; pairs where the samples are the same."""

from typing import Any

import pytest
import torch

import brinell
from brinell.analysis.numbers import difference
from brinell.analysis.shift import shift
from brinell.errors import InputError
from brinell.results import Proportion, paired_difference

RIGHT, WRONG = [1.0, 0.0], [0.0, 1.0]


def test_pairs_by_hand(worlds: Any) -> None:
    """At home 7 of 10 right; elsewhere the same samples, of which 5 stay right and one becomes so."""
    model = worlds.look_up(torch.tensor([RIGHT] * 7 + [WRONG] * 3 + [RIGHT] * 5 + [WRONG] * 2 + [RIGHT] + [WRONG] * 2))
    there = worlds.places(10, 10, ids=range(10))
    found = shift(model, worlds.places(0, 10), {"there": there, "other": worlds.places(10, 8, ids=range(50, 58))})
    same, other = found.sets
    assert same.paired and same.accuracy.k == 6 and found.home.k == 7
    assert same.gap == paired_difference(5, 1, 2, 2)
    assert not other.paired and other.gap == difference(Proportion(6, 8), Proportion(7, 10))
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


def test_refusals(worlds: Any) -> None:
    model = worlds.look_up(torch.zeros(4, 2))
    with pytest.raises(InputError, match="at least one other"):
        shift(model, worlds.places(0, 4), {})
    with pytest.raises(InputError, match=r"labels in 0\.\.1"):
        shift(model, worlds.places(0, 4), {"far": worlds.places(0, 4, torch.tensor([0, 1, 2, 0]))})
