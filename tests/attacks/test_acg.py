"""Conjugate gradients against their identities, iterations written out by hand, and models whose truth is known."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import brinell
from brinell.attacks import ACG, APGD
from brinell.attacks.gradient.acg import conjugate
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball, threat
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import check_attack, duel, linear_world

N, SIZE = 5, 7
KEY = rng.keys(1, torch.arange(N))
CENTRE = 0.3 + 0.4 * rng.uniform(KEY, (SIZE,))
CURVED = torch.diag(torch.linspace(0.5, 4.0, SIZE)) + 0.3


def response(x: Tensor) -> Response:
    """A concave quadratic loss, −½ (x − c)ᵀ A (x − c), whose best point lies inside the box."""
    d = x - CENTRE
    return Response(torch.zeros(N, 2), -0.5 * ((d @ CURVED) * d).sum(1), -(d @ CURVED))


def followed(attack: ACG, ball: Ball, start: Tensor) -> list:
    p = Batch(torch.full((N, SIZE), 0.5), torch.zeros(N).long(), KEY, torch.full((N,), -1), start)
    states = [attack.init(p, ball)]
    for _ in range(attack.steps):
        states.append(attack.step(states[-1], response(states[-1].x), p, ball))
    return states


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_directions_are_conjugate(norm):
    """On a quadratic two directions in a row are orthogonal in its curvature, unless the step was halved between."""
    ball = Ball(NORMS[norm], torch.full((N,), 0.4))
    states = followed(ACG(20), ball, rng.uniform(rng.fold(KEY, 1), (SIZE,)))
    seen = 0
    for before, after in pairwise(states[1:]):
        change = before.g_prev - after.g_prev
        on = (after.step == before.step) & (change.norm(dim=1) > 1e-4)
        cosine = torch.cosine_similarity(after.direction, change)
        assert (cosine[on].abs() < 1e-3).all()
        seen += int(on.sum())
    assert seen >= 3 * N, "the step was halved all the time"


def test_in_two_dimensions_the_second_direction_points_at_the_top():
    """Conjugate to the first step, whatever its length: where a line search would need two steps."""
    a, top = torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([0.2, -0.4])
    x0 = torch.tensor([[1.0, 0.0]])
    first = -(x0 - top) @ a
    best = x0 + first * (first.square().sum() / (first @ a @ first.T))
    second = conjugate(-(best - top) @ a, first, first)
    assert torch.cosine_similarity(second, top - best).item() == pytest.approx(1, abs=1e-5)


def test_the_length_of_the_last_direction_and_of_all_gradients_does_not_matter():
    g, before, s = (rng.normal(rng.fold(KEY, k), (SIZE,)) for k in range(3))
    want = conjugate(g, before, s)
    assert torch.allclose(conjugate(g, before, 100 * s), want, rtol=1e-4, atol=1e-5)
    assert torch.allclose(conjugate(1000 * g, 1000 * before, s), 1000 * want, rtol=1e-4, atol=1e-2)
    assert torch.equal(conjugate(g, g, s), g), "an unchanged gradient says nothing about the curvature"


def test_by_hand():
    """Signs of conjugate directions from a start, clipped to ball and box, until the first checkpoint."""
    eps, x0, start = 0.2, np.full((N, SIZE), 0.5), (0.5 + 0.3 * (rng.uniform(KEY, (SIZE,)) - 0.5)).numpy()
    states = followed(ACG(50), Ball(NORMS["Linf"], torch.full((N,), eps)), torch.from_numpy(start))
    a, c = CURVED.double().numpy(), CENTRE.double().numpy()
    x, s, before = start.astype(np.float64), None, None
    for k in range(6):
        assert np.allclose(states[k].x.numpy(), x, atol=1e-5)
        g = -(x - c) @ a
        if s is None:
            s = g
        else:
            y = before - g
            along = (s * y).sum(1)
            beta = np.divide((g * y).sum(1), along, out=np.zeros(N), where=along != 0)
            s = g - beta[:, None] * s
        before, x = g, np.clip(x + 2 * eps * np.sign(s), x0 - eps, x0 + eps)


def test_it_differs_from_apgd_in_the_direction_alone():
    """In a linear model both take the same steps and halve them alike, once momentum has no effect."""
    world = duel(classes=2, n=8)
    for norm in ("Linf", "L2"):
        t = threat(norm, 0.5 * world.distance(norm))
        both = [
            brinell.attack(world.classifier, (world.x, world.y), t, attack, early_exit=False)["best_loss"].to_pylist()
            for attack in (ACG(30), APGD(30, "margin"))
        ]
        assert both[0] == pytest.approx(both[1], rel=1e-3)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("loss", ["ce", "margin", "probability-margin"])
def test_a_linear_model_breaks_exactly_beyond_its_distance(norm, loss):
    world = duel(n=16)
    for share, broken in ((0.99, False), (1.01, True)):
        t = threat(norm, share * world.distance(norm))
        rows = brinell.attack(world.classifier, (world.x, world.y), t, ACG(50, loss))
        assert rows["broken"].to_pylist() == [broken] * 16


def test_many_rivals():
    world = linear_world(5, n=16)
    part = brinell.Targets(ACG(30, "minimum-margin"), k=4)
    rows = brinell.attack(world.classifier, (world.x, world.y), threat("L2", 1.01 * world.distance("L2")), part)
    assert all(rows["broken"].to_pylist())


def test_a_zero_gradient_stands_still():
    ball = Ball(NORMS["Linf"], torch.full((N,), 0.1))
    p = Batch(torch.full((N, SIZE), 0.5), torch.zeros(N).long(), KEY, torch.full((N,), -1))
    s = ACG(3).init(p, ball)
    for _ in range(3):
        s = ACG(3).step(s, Response(torch.zeros(N, 2), torch.zeros(N), torch.zeros_like(p.x)), p, ball)
        assert s.x.isfinite().all() and s.direction.isfinite().all()


def test_targeted_attacks_keep_the_contract():
    check_attack(ACG(6, "dlr-targeted"), samples=4, steps=4)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"loss": "cee"}])
def test_impossible_parameters_are_refused(wrong):
    with pytest.raises(brinell.PlanError):
        replace(ACG(), **wrong)


def test_l1_is_refused():
    with pytest.raises(brinell.PlanError, match="works only in Linf, L2"):
        brinell.evaluate("demo", brinell.data.load("demo", 2), brinell.L1(3), ACG(3), progress=False)
