"""Foolbox's call: `raw, clipped, is_adv = attack(fmodel, x, criterion, epsilons=…)`."""

from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell.compat import foolbox as fb
from brinell.models.demo import demo_net

N = 12
NET = demo_net()
X, Y = brinell.data.load("demo", N)


def size(d: torch.Tensor, norm: str) -> torch.Tensor:
    flat = d.double().flatten(1)
    return {"Linf": flat.abs().amax(1), "L2": flat.norm(dim=1), "L1": flat.abs().sum(1)}[norm]


@pytest.mark.parametrize(
    ("attack", "epsilons"),
    [
        (fb.attacks.LinfPGD(steps=5), [0.02, 0.15]),
        (fb.attacks.L2PGD(steps=4, abs_stepsize=0.5), [0.5, 2.0]),
        (fb.attacks.L1PGD(steps=4), [5.0, 30.0]),
        (fb.attacks.FGSM(), [0.02, 0.15]),
        (fb.attacks.LinfFastGradientAttack(random_start=True), [0.02, 0.2]),
        (fb.attacks.L2BasicIterativeAttack(steps=3), [0.5, 2.0]),
        (fb.attacks.LinfDeepFoolAttack(steps=8), [0.02, 0.2]),
        (fb.attacks.L2FMNAttack(steps=20), [0.5, 2.0]),
        (fb.attacks.DDNAttack(steps=20), [0.5, 2.0]),
        (fb.attacks.LinfPGD(steps=2).repeat(2), [0.02, 0.2]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_several_epsilons(attack: Any, epsilons: list[float]) -> None:
    """Clipped points lie in the ball and are judged by the model; a larger radius never breaks fewer samples."""
    fmodel = fb.PyTorchModel(NET, bounds=(0, 1))
    raw, clipped, is_adv = attack(fmodel, X, fb.criteria.Misclassification(Y), epsilons=epsilons)
    assert is_adv.shape == (2, N) and len(raw) == len(clipped) == 2
    for eps, points, hit in zip(epsilons, clipped, is_adv, strict=True):
        assert float(size(points - X, attack.norm).max()) <= eps * (1 + 1e-5)
        assert torch.equal(hit, NET(points).argmax(1) != Y)
    small, large = is_adv.float().mean(1).tolist()
    assert small <= large and large > 1 - fb.accuracy(fmodel, X, Y)


def test_one_epsilon_and_none() -> None:
    fmodel = fb.PyTorchModel(NET, bounds=(0, 1))
    _, clipped, hit = fb.attacks.LinfPGD(steps=3)(fmodel, X, Y, epsilons=0.1)
    assert clipped.shape == X.shape and hit.shape == (N,)
    raw, clipped, hit = fb.attacks.L2FMNAttack(steps=40)(fmodel, X[:4], Y[:4], epsilons=None)
    assert torch.equal(raw, clipped) and hit.all()
    with pytest.raises(brinell.InputError, match="epsilons"):
        fb.attacks.LinfPGD()(fmodel, X, Y, epsilons=None)


def test_bounds_and_preprocessing() -> None:
    """In other bounds, and with a normalisation, the same points are found."""
    plain = fb.PyTorchModel(NET, bounds=(0, 1))
    wide = fb.PyTorchModel(
        lambda z: NET(z * 2.0 / 256 + 0.0625), bounds=(0, 256), preprocessing={"mean": [16.0], "std": [2.0], "axis": -3}
    )
    assert torch.allclose(plain(X), wide(256 * X), atol=1e-4)
    attack = fb.attacks.L2PGD(steps=4, random_start=False)
    one, many = attack(plain, X, Y, epsilons=1.0), attack(wide, 256 * X, Y, epsilons=256.0)
    assert torch.equal(one[2], many[2]) and torch.allclose(256 * one[1], many[1], atol=0.1)
    assert fb.accuracy(wide, 256 * X, Y) == fb.accuracy(plain, X, Y)
    with pytest.raises(brinell.InputError, match="axis"):
        fb.PyTorchModel(NET, bounds=(0, 1), preprocessing={"mean": [0.5], "std": [0.2]})
    with pytest.raises(brinell.InputError, match="scale"):
        fb.PyTorchModel(NET, bounds=(0, 1), preprocessing={"scale": 2})


def test_targets() -> None:
    target = (Y + 1) % 10
    goal = fb.TargetedMisclassification(target)
    _, clipped, hit = fb.attacks.LinfPGD(steps=10, rel_stepsize=0.2)(
        fb.PyTorchModel(NET, (0, 1)), X, goal, epsilons=0.3
    )
    assert torch.equal(hit, NET(clipped).argmax(1) == target) and int(hit.sum()) > 0


def test_epsilon_zero_is_the_clean_outcome() -> None:
    """Foolbox's example begins its list of epsilons with 0.0, and an array of them is common."""
    fmodel, wrong = fb.PyTorchModel(NET, (0, 1)), NET(X).argmax(1) != Y
    for attack in (fb.attacks.LinfPGD(steps=2, abs_stepsize=0.01), fb.attacks.L2FMNAttack(steps=5)):
        _, clipped, hit = attack(fmodel, X, Y, epsilons=np.array([0.0, 0.1]))
        assert torch.equal(clipped[0], X) and torch.equal(hit[0], wrong) and hit.shape == (2, N)


@pytest.mark.parametrize("width", [1, 255])
def test_radii_up_to_and_beyond_the_whole_box(width: int) -> None:
    """Foolbox's example ends its list of epsilons with 1.0: from there on every image of the box is allowed."""
    fmodel, x = fb.PyTorchModel(lambda z: NET(z / width), (0, width)), width * X
    few = fb.attacks.LinfBasicIterativeAttack(steps=3)(fmodel, x, Y, epsilons=[0.1 * width])
    _, clipped, hit = fb.attacks.LinfBasicIterativeAttack(steps=3)(
        fmodel, x, Y, epsilons=np.array([0.0, 0.1, 1.0, 7.0]) * width
    )
    assert torch.equal(hit[1], few[2][0]) and torch.equal(clipped[1], few[1][0])
    assert hit[2].all() and torch.equal(hit[2], hit[3]) and torch.equal(clipped[2], clipped[3])
    assert float(clipped[3].min()) >= 0 and float(clipped[3].max()) <= width
    _, _, hit = fb.attacks.FGM()(fmodel, x, Y, epsilons=[28.0 * width, 1e9])
    assert torch.equal(hit[0], hit[1])
    with pytest.raises(brinell.InputError, match="at least 0"):
        fb.attacks.FGSM()(fmodel, x, Y, epsilons=[0.1, -1])


@pytest.mark.parametrize("attack", [fb.attacks.L2DeepFoolAttack(), fb.attacks.LinfDeepFoolAttack()])
def test_deepfool_on_a_linear_model(attack: Any) -> None:
    """One step of the closed form, lengthened by 1e-4 and the overshoot, as in Foolbox."""
    w, x = torch.tensor([3.0, -4.0]), torch.tensor([[0.5, 0.5]])
    fmodel = fb.PyTorchModel(lambda z: torch.stack([z @ w, torch.zeros(len(z))], 1), (0, 1))
    raw, _, hit = attack(fmodel, x, torch.tensor([1]), epsilons=None)
    assert hit.all()
    step = (0.5 / 25 + 1e-4 / 5) * w if attack.norm == "L2" else (0.5 / 7 + 1e-4) * w.sign()
    assert torch.allclose(raw, x + 1.02 * step, atol=1e-6)


def test_the_modules_are_those_of_foolbox() -> None:
    from brinell.compat.foolbox.attacks import LinfPGD
    from brinell.compat.foolbox.criteria import Misclassification

    assert LinfPGD is fb.attacks.LinfPGD and Misclassification is fb.Misclassification


class Eager:
    """A tensor in a wrapper, as eagerpy makes it."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw


def test_the_example_of_foolbox() -> None:
    """Its steps: samples, wrapped by eagerpy or not, the accuracy, the attack."""
    fmodel = fb.PyTorchModel(lambda z: NET(z / 255), bounds=(0, 255))
    images, labels = fb.samples(fmodel, dataset="fashionMNIST", batchsize=N)
    assert torch.equal(images, 255 * X) and torch.equal(labels, Y)
    eager = Eager(images), Eager(labels)
    assert fb.accuracy(fmodel, *eager) == fb.accuracy(fmodel, images, labels)
    raw, _, hit = fb.attacks.FGSM()(fmodel, *eager, epsilons=[0.0, 25.5])
    assert hit.raw.shape == (2, N) and isinstance(raw[1], Eager) and torch.equal(raw[0].raw, images)
    with pytest.raises(brinell.InputError, match="fashionMNIST"):
        fb.samples(fmodel, dataset="svhn")


def test_what_is_missing_names_what_to_use() -> None:
    for name, remedy in (("HopSkipJumpAttack", "brinell.attacks.HopSkipJump"), ("LinfPDG", "LinfPGD")):
        with pytest.raises(AttributeError, match=remedy):
            getattr(fb.attacks, name)
    with pytest.raises(AttributeError, match="imshow"):
        _ = fb.plot
    assert not hasattr(fb, "nothing") and not hasattr(fb.attacks, "BoundaryAttack")
    with pytest.raises(ImportError, match=r"attacks\.LinfPGD"):
        from brinell.compat.foolbox import LinfPGD  # noqa: F401
    with pytest.raises(ImportError, match=r"brinell\.attacks\.HopSkipJump"):
        from brinell.compat.foolbox.attacks import BoundaryAttack  # noqa: F401
    bad = (
        fb.attacks.L2CarliniWagnerAttack(confidence=1), fb.attacks.L2FMNAttack(gamma=0.1),
        fb.attacks.EADAttack(decision_rule="EN"),
        fb.attacks.L2DeepFoolAttack(candidates=3), fb.attacks.DDNAttack(init_epsilon=2),
    )  # fmt: skip
    for attack in bad:
        with pytest.raises(brinell.InputError):
            attack(fb.PyTorchModel(NET, (0, 1)), X, Y, epsilons=1.0)
    with pytest.raises(brinell.PlanError, match="expected labels"):
        fb.attacks.FGSM()(fb.PyTorchModel(NET, (0, 1)), X, "misclassify", epsilons=0.1)
