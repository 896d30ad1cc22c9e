"""Adversarial examples of one norm in another, and the order of models across norms."""

import numpy as np
import pytest
import torch

import brinell
from brinell.attacks import DDN
from brinell.curves import Curve, measured_in, order_across_norms, transfer_across_norms
from brinell.testing import duel

pytestmark = pytest.mark.usefixtures("unchecked")


def test_sizes_in_another_norm_are_those_of_the_closed_form():
    """Between two linear classes the nearest point in L2 lies along w: its Linf size is |w·x + b| max|w| / ‖w‖²."""
    world = duel(classes=2, n=12)
    data = (world.x, world.y)
    l2 = brinell.curve(world.classifier, data, "L2", [DDN(300)], progress=False)
    gap, slope = world.gaps()
    other = 1 - world.y
    rows = torch.arange(len(other))
    w = slope[rows, other]
    exact = gap[rows, other] * w.abs().amax(1) / w.square().sum(1)
    found = measured_in(l2, data, "Linf")
    np.testing.assert_allclose(found.distances, exact.numpy(), rtol=0.02)
    assert found.norm == "Linf" and found.name.endswith("attacked in L2")
    same = measured_in(l2, data, "L2")
    np.testing.assert_array_equal(same.distances, l2.distances)


def test_every_norm_in_every_other():
    images = brinell.data.load("demo", 5)
    curves = [brinell.curve("demo", images, p, "minimal-quick", progress=False) for p in ("Linf", "L2", "L1")]
    found = transfer_across_norms(curves, images)
    assert [(t.found_in, t.direct.norm) for t in found][:3] == [("Linf", "L2"), ("Linf", "L1"), ("L2", "Linf")]
    assert len(found) == 6 and all(t.factor > 1 for t in found), "attacks in another norm find larger perturbations"
    for t in found:
        np.testing.assert_array_equal(t.transferred.distances == 0, t.direct.distances == 0)
    assert found[0].cells[:3] == ("demo", "Linf", "L2")


def test_a_curve_without_a_run_is_refused():
    with pytest.raises(brinell.InputError, match="with the path of its Run"):
        measured_in(Curve("L2", np.arange(2), np.ones(2)), None, "Linf")


def test_order_with_crossings():
    """In Linf A is better throughout; in L2 the curves cross at 0.5."""
    ids, half = np.arange(200), np.repeat([0.25, 0.75], 100)
    first = [Curve("Linf", ids, np.full(200, 0.9), "A"), Curve("Linf", ids, half, "B")]
    second = [Curve("L2", ids, np.full(200, 0.5), "A"), Curve("L2", ids, half, "B")]
    (found,) = order_across_norms(first, second)
    assert [len(c.real) for c in found.crossings] == [0, 1]
    assert found.crossings[1].real[0].at == pytest.approx(0.5)
    assert found.in_first.value < 0 and str(found).endswith("significant crossings: 0 in Linf, 1 in L2")
