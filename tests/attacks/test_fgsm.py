"""FGSM against its one-line formula."""

import pytest
import torch

import brinell
from brinell.attacks import FGSM
from brinell.core.attack import Batch, Response
from brinell.core.threat import Linf, threat
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import duel

EVERY_NORM = pytest.mark.parametrize("norm", NORMS)
STEPS = {
    "Linf": lambda g: g.sign(),
    "L2": lambda g: g / g.norm(dim=1, keepdim=True),
    "L1": lambda g: g.sign() * (g.abs() == g.abs().amax(1, keepdim=True)),
}


@EVERY_NORM
def test_formula(norm):
    key = rng.keys(0, torch.arange(10))
    x, g = 0.3 + 0.4 * rng.uniform(key, (12,)), rng.normal(rng.fold(key, 1), (12,))
    p = Batch(x, torch.zeros(10).long(), key, torch.full((10,), -1))
    ball = threat(norm, 0.25).ball(torch.arange(10), torch.device("cpu"))
    attack = FGSM(density=0.0)
    first = attack.init(p, ball)
    assert torch.equal(first.x, x) and (first.t == 0).all()
    second = attack.step(first, Response(torch.zeros(10, 3), torch.zeros(10), g), p, ball)
    assert torch.allclose(second.x, x + 0.25 * STEPS[norm](g), atol=1e-6) and (second.t == 1).all()
    assert attack.queries == 2


@EVERY_NORM
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_one_step_suffices_in_a_linear_world(norm, loss):
    world = duel(n=30)
    for share, broken in ((0.99, False), (1.01, True)):
        t = threat(norm, world.distance(norm) * share)
        rows = brinell.attack(world.classifier, (world.x, world.y), t, FGSM(loss, density=0.0))
        assert rows["broken"].to_pylist() == [broken] * 30
        assert rows["first_broken_at"].to_pylist() == [1 if broken else None] * 30


def test_the_clean_point_is_looked_at_too():
    """A misclassified sample is broken by the point it starts from."""
    world = duel(n=10)
    rows = brinell.attack(world.classifier, (world.x, 1 - world.y), Linf(1e-3), FGSM())
    assert rows["first_broken_at"].to_pylist() == [0] * 10 and rows["forwards"].to_pylist() == [1] * 10


def test_names_and_refusals():
    assert FGSM("dlr").name == "fgsm-dlr"
    with pytest.raises(brinell.PlanError, match="'margin'"):
        FGSM("margins")
