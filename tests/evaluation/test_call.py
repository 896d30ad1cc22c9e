"""`x_adv = attack(model, x, y, threat)`: an attack called as other libraries call theirs."""

import math

import pytest
import torch

import brinell
from brinell.attacks import APGD, DDN, FGSM, FMN, PGD, HopSkipJump, MomentumPGD, Square
from brinell.models.demo import demo_net
from brinell.testing.worlds import LinearWorld, duel, linear_world


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


def test_a_stage_is_called_like_its_attack() -> None:
    world, threat = linear_world(), brinell.L2(0.3)
    once = brinell.Restarts(PGD(steps=3), 1)(world.classifier, world.x, world.y, threat)
    assert torch.equal(once, PGD(steps=3)(world.classifier, world.x, world.y, threat))


def distance_to(world: LinearWorld, target: torch.Tensor) -> torch.Tensor:
    """A lower bound of the distance at which a class leads: that to the boundary with the sample's own class."""
    return world.distances("L2").gather(1, target[:, None])[:, 0]


@pytest.mark.parametrize("attack", [APGD(30), PGD(40), FGSM()], ids=lambda a: a.name)
def test_targets_at_a_radius(attack: brinell.attacks.PGD) -> None:
    """Between two rivals the target leads beyond the closed-form distance, and only there."""
    world = duel(classes=4, shape=(1, 5, 5), n=8)
    target = 1 - world.y
    for share, reached in ((0.99, False), (1.01, True)):
        threat = brinell.L2(share * distance_to(world, target))
        called = attack(world.classifier, world.x, target, threat, targeted=True)
        hit = world.classifier.forward(called).logits.argmax(1) == target
        assert hit.tolist() == [reached] * 8
        # The other rivals are out of reach, so as targets they are never met, though samples are misclassified.
        away = attack(world.classifier, world.x, torch.full_like(target, 3), threat, targeted=True)
        assert torch.equal(away, world.x)


@pytest.mark.parametrize("attack", [DDN(200), FMN(200)], ids=lambda a: a.name)
def test_the_nearest_point_of_a_chosen_class(attack: brinell.attacks.FMN) -> None:
    world = linear_world(4, n=8)
    others = world.distances("L2")
    # The farthest class that is not the sample's own.
    target = torch.where(others.isinf(), -1.0, others).argmax(1)
    rows, images = brinell.attack(
        world.classifier, (world.x, world.y), brinell.L2(), attack, targets=target, images=True
    )
    assert world.classifier.forward(images).logits.argmax(1).tolist() == target.tolist()
    found = torch.tensor(rows["distance"].to_pylist())
    assert (found >= others.gather(1, target[:, None])[:, 0] * (1 - 1e-5)).all()
    assert rows["target"].to_pylist() == rows["adv_pred"].to_pylist() == target.tolist()
    assert rows["label"].to_pylist() == rows["clean_pred"].to_pylist() == world.y.tolist()
    # Untargeted, the same attack stops at a nearer class.
    free = brinell.attack(world.classifier, (world.x, world.y), brinell.L2(), attack)["distance"].to_pylist()
    assert sum(free) < sum(found.tolist()) - 1e-3


def test_targets_do_not_depend_on_company() -> None:
    x, y = brinell.data.load("demo", 12)
    threat, attack, target = brinell.Linf(0.3), PGD(5), (y + 1) % 10
    whole = attack("demo", x, target, threat, targeted=True)
    ids = brinell.Problem(x[6:], y[6:], ids=range(6, 12))
    _, part = brinell.attack("demo", ids, threat, attack, targets=target[6:], images=True, slots=2)
    assert torch.equal(whole[6:], part)
    assert 0 < int((whole != x).flatten(1).any(1).sum()) < 12


def test_wrong_targets_and_threats() -> None:
    x, y = brinell.data.load("demo", 4)
    for targets in (10, -1, [0, 1], [0.5] * 4, y[:2]):
        with pytest.raises(brinell.InputError, match="one target class per sample"):
            brinell.attack("demo", (x, y), brinell.Linf(0.1), FGSM(), targets=targets)
    with pytest.raises(brinell.ThreatError, match="a threat: a norm with its radius, got None"):
        PGD()("demo", x, y)
    with pytest.raises(brinell.InputError, match="The radius belongs to the threat"):
        PGD()("demo", x, y, eps=0.1)


@pytest.mark.parametrize(
    ("attack", "keyword", "remedy"),
    [
        *((PGD, name, "Write rel_step=") for name in ("alpha", "step_size", "eps_iter")),
        *((PGD, name, "Write steps=") for name in ("num_iter", "nb_iter", "max_iter", "n_iter", "num_steps")),
        (MomentumPGD, "rand_init", "Write random_start="),
        (FGSM, "random_start", "FGSM has no such number"),
        (FMN, "num_iter", "Write steps="),
        (Square, "n_queries", "Write steps="),
        (HopSkipJump, "max_queries", "Write steps="),
        (PGD, "eps", "The radius belongs to the threat"),
        (PGD, "norm", "The norm belongs to the threat"),
        (APGD, "n_restarts", "brinell.Restarts"),
        (APGD, "targeted", "targeted=True"),
        (APGD, "eot_iter", "brinell.Eot"),
        (APGD, "seed", "seed=0"),
        (PGD, "stepz", "Did you mean 'steps'"),
    ],
)
def test_numbers_under_names_of_other_libraries(attack: type, keyword: str, remedy: str) -> None:
    with pytest.raises(brinell.PlanError, match=attack.__name__) as caught:
        attack(**{keyword: math.pi})
    assert caught.value.got == keyword
    assert remedy in caught.value.remedy
