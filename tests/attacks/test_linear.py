"""APGD where the truth is known: it breaks every sample just beyond the boundary's distance, and none before."""

import pytest
import torch

import brinell
from brinell.attacks import APGD
from brinell.core.threat import threat
from brinell.ops.norms import NORMS
from brinell.testing import LinearWorld, duel, linear_world

N = 16
ENOUGH = 1.01
# AutoAttack's code moves ⌈support / 1.5⌉ coordinates at a time in L1: of two that is two, so it settles on the two or
# three steepest ones instead of the single best, however many steps it has.
ROUNDED_UP = 1.4


def broken(world: LinearWorld, norm: str, eps: torch.Tensor, part) -> torch.Tensor:
    rows = brinell.attack(world.classifier, (world.x, world.y), threat(norm, eps), part)
    return torch.tensor(rows["broken"].to_pylist())


def exactly(world: LinearWorld, norm: str, part, enough: float = ENOUGH) -> None:
    inside = broken(world, norm, world.distance(norm) * 0.99, part)
    assert not inside.any(), "broken inside the certified distance: something is wrong"
    assert broken(world, norm, world.distance(norm) * enough, part).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_one_rival(norm, loss):
    exactly(duel(n=N), norm, APGD(50, loss))


@pytest.mark.parametrize("norm", NORMS)
def test_autoattack_s_version(norm):
    exactly(duel(n=N), norm, APGD(50, quirks="autoattack"), ROUNDED_UP if norm == "L1" else ENOUGH)


@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_larger_radii(loss):
    exactly(duel(n=N), "L1", APGD(50, loss, larger_eps=True))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["dlr-targeted", "minimum-margin"])
def test_many_rivals_one_target_at_a_time(norm, loss):
    """Untargeted losses may follow the wrong rival; aiming at each in turn cannot miss the nearest."""
    exactly(linear_world(5, n=N), norm, brinell.Targets(APGD(30, loss), k=4))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_many_rivals_nothing_breaks_too_early(norm, loss):
    world = linear_world(10, (1, 6, 6), n=N)
    assert not broken(world, norm, 0.99 * world.distance(norm), APGD(20, loss)).any()


@pytest.mark.parametrize("norm", NORMS)
def test_images(norm):
    exactly(duel(shape=(3, 8, 8), n=N), norm, APGD(50, "margin"))


@pytest.mark.parametrize("norm", NORMS)
def test_the_box_is_part_of_the_truth(norm):
    """Samples with half of their coordinates on the face they would have to cross: the rest must do it."""
    world = duel(classes=2, n=N)
    w = world.weight[1] - world.weight[0]
    # In L1 it is the steepest coordinate that must have no room.
    on = (torch.arange(24) % 2 == 0) | (w.abs() == w.abs().max())
    x = torch.where(on, (w > 0).float(), world.x)
    # All samples belong to the first class, the nearest of them a little inside.
    bias = torch.tensor([0.0, -float((x @ w).max()) - 0.3])
    moved = LinearWorld(torch.stack([0 * w, w]), bias, x, torch.zeros(N).long())
    boxed = moved.boxed_distances(norm).amin(1)
    near = boxed < {"Linf": 0.4, "L2": 1.5, "L1": 5.0}[norm]
    moved, boxed = LinearWorld(moved.weight, bias, x[near], moved.y[near]), boxed[near]
    assert len(boxed) >= 4 and (boxed > moved.distance(norm) * 1.1).all(), "the test tests nothing"
    for share, fall in ((0.99, False), (ENOUGH, True)):
        t = threat(norm, boxed * share)
        rows = brinell.attack(moved.classifier, (moved.x, moved.y), t, APGD(100, "margin"))
        assert rows["broken"].to_pylist() == [fall] * len(boxed)


@pytest.mark.slow
@pytest.mark.parametrize("larger_eps", [False, True])
def test_what_the_reference_s_rounding_reaches_in_l1(larger_eps):
    """Neither ten times the steps nor larger radii bring AutoAttack's version to the single best coordinate."""
    world = duel(shape=(1, 8, 8), n=N)
    attack = APGD(1000, "margin", quirks="autoattack", larger_eps=larger_eps)
    assert broken(world, "L1", world.distance("L1") * 1.01, attack).float().mean() < 0.5
    assert broken(world, "L1", world.distance("L1") * ENOUGH, APGD(100, "margin", larger_eps=larger_eps)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_world_is_what_it_says(norm):
    """Points at the closed-form distance, made here by hand, cross the boundary; nothing shorter can."""
    world = linear_world(6, (2, 3, 4), n=N)
    _, slope = world.gaps()
    nearest = world.distances(norm).argmin(1)
    w = slope[torch.arange(N), nearest]
    unit = {"Linf": w.sign(), "L2": w / w.norm(dim=1, keepdim=True)}.get(norm)
    if unit is None:
        unit = torch.zeros_like(w).scatter(
            1, w.abs().argmax(1, keepdim=True), w.gather(1, w.abs().argmax(1, keepdim=True)).sign()
        )
    for share, fall in ((0.999, False), (1.001, True)):
        x = world.x.double().flatten(1) + share * world.distance(norm)[:, None] * unit
        assert ((x >= 0) & (x <= 1)).all()
        z = world.classifier.forward(x.float().view_as(world.x)).logits
        assert torch.equal(z.argmax(1) != world.y, torch.full((N,), fall))
    assert torch.allclose(world.boxed_distances(norm).amin(1), world.distance(norm))
