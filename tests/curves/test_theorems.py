"""The two theorems of the paper on robustness curves, with curves that attacks measure."""

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.testing import duel

pytestmark = pytest.mark.usefixtures("unchecked")


def test_curves_cross_between_any_radii():
    """Theorem 1 on a line scaled into the box, for radii whose gaps differ: the distances are those of attacks."""
    first, second = [0.02, 0.11, 0.13], [0.10, 0.12, 0.15]
    d, far = 0.16, 0.3
    right = 2 * [d + (t + u) / 2 for t, u in zip(first, second, strict=True)]
    left = [-d - first[0] / 2, *(2 * [-d - (u + t) / 2 for u, t in zip(second, first[1:], strict=False)])]
    x = torch.tensor([*right, *left, -d - far / 2, -d - far / 2])[:, None] + 0.5
    y = torch.tensor([1] * len(right) + [0] * (len(x) - len(right)))
    curves = []
    for threshold in (d, -d):
        net = nn.Linear(1, 2)
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[-1.0], [1.0]]))
            net.bias.copy_(torch.tensor([1.0, -1.0]) * (0.5 + threshold))
        model = brinell.wrap(net.eval().requires_grad_(False))
        curves.append(brinell.curve(model, (x, y), "L1", "minimal-quick", progress=False))
    a, b = curves
    assert a.at(0).k == b.at(0).k == 0
    assert all(a.at(t).k < b.at(t).k for t in first) and all(a.at(t).k > b.at(t).k for t in second)


def test_linear_classifiers_have_one_shape_in_all_norms():
    """Theorem 2: R in p1 at eps is R in p2 at eps ‖w‖_q1 / ‖w‖_q2."""
    world = duel(classes=2, n=24)
    w = (world.weight[1] - world.weight[0]).double()
    found = {}
    for norm, q in (("Linf", 1), ("L2", 2), ("L1", np.inf)):
        c = brinell.curve(world.classifier, (world.x, world.y), norm, "minimal-quick", progress=False)
        found[norm] = c.distances * float(torch.linalg.vector_norm(w, q))
    np.testing.assert_allclose(found["Linf"], found["L2"], rtol=0.02)
    np.testing.assert_allclose(found["L1"], found["L2"], rtol=0.02)
