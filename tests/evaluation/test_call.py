"""`x_adv = attack(model, x, y, threat)`: an attack called as other libraries call theirs."""

import pytest
import torch

import brinell
from brinell.attacks import FGSM, PGD, Square
from brinell.models.demo import demo_net
from brinell.testing.worlds import linear_world


@pytest.mark.parametrize("attack", [FGSM(), PGD(steps=10), Square(steps=50)], ids=lambda a: a.name)
def test_broken_samples_become_their_verified_adversarials_and_others_stay(attack: brinell.attacks.PGD) -> None:
    x, y = brinell.data.load("demo", 24)
    threat = brinell.Linf(0.1)
    rows, images = brinell.attack("demo", (x, y), threat, attack, images=True)
    called = attack("demo", x, y, threat)
    assert torch.equal(called, images)
    broken = torch.tensor(rows["broken"].to_pylist())
    assert 0 < int(broken.sum()) < len(x)
    with torch.no_grad():
        wrong = demo_net()(images).argmax(1) != y
    clean_wrong = torch.tensor(rows["clean_pred"].to_pylist()) != y
    assert torch.equal(wrong, broken | clean_wrong)
    assert torch.equal(images[~broken], x[~broken])
    assert float((images - x).abs().max()) <= 0.1 * (1 + 1e-6)


def test_a_module_and_a_seed() -> None:
    world = linear_world()
    a, b, c = (PGD(steps=3)(world.classifier, world.x, world.y, brinell.L2(0.3), seed=s) for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
