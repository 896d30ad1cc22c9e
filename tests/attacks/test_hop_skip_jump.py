"""HopSkipJump where the smallest distance is known, and where only decisions can be seen."""

import math

import pytest
import torch
from torch import nn

import brinell
from brinell import PlanError
from brinell.attacks import HopSkipJump, Square
from brinell.attacks.black_box.hop_skip_jump import halvings
from brinell.attacks.catalogue import by_name
from brinell.core.plan import plan
from brinell.core.threat import threat
from brinell.evaluation.plan import limited
from brinell.testing import check_attack, duel

pytestmark = pytest.mark.usefixtures("unchecked")
BOTH = pytest.mark.parametrize("norm", ["Linf", "L2"])


class Decides(nn.Module):
    """The decisions of another classifier, and nothing else."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        logits = self.inner.forward(x).logits
        return nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float() - 0.5


def found(classifier, world, norm: str, attack, eps: float = math.inf) -> torch.Tensor:
    """Verified distances; inf where there is none."""
    rows = brinell.attack(classifier, (world.x, world.y), threat(norm, eps), attack)
    pairs = zip(rows["distance"].to_pylist(), rows["verified"].to_pylist(), strict=True)
    return torch.tensor([d if ok else math.inf for d, ok in pairs], dtype=torch.float64)


@BOTH
def test_near_the_closed_form_and_never_below(norm):
    """1,000 decisions, 24 coordinates: within a quarter of the optimum, most within a tenth."""
    world = duel(classes=2, n=8)
    ratio = found(world.classifier, world, norm, HopSkipJump(1000)) / world.distance(norm)
    assert (ratio >= 1 - 1e-5).all(), "below the closed form: something is wrong"
    assert (ratio <= 1.25).all() and (ratio <= 1.1).double().mean() >= 0.5, ratio.tolist()


@pytest.mark.slow
@BOTH
def test_more_decisions_come_nearer(norm):
    world = duel(classes=2, n=16)
    ratio = found(world.classifier, world, norm, HopSkipJump(5000)) / world.distance(norm)
    assert (ratio >= 1 - 1e-5).all() and (ratio <= 1.05).all() and ratio.median() <= 1.02, ratio.tolist()


@BOTH
def test_decisions_are_all_it_looks_at(norm):
    """Where only labels are told, every point and every distance is the same."""
    world = duel(classes=3, n=4)
    attack = HopSkipJump(300)
    blind = brinell.wrap(Decides(world.classifier).eval(), differentiable=False)
    assert torch.equal(found(blind, world, norm, attack), found(world.classifier, world, norm, attack))


@BOTH
def test_the_contract_holds_in_every_phase(norm):
    """Forty answers with short estimates: every phase is passed through more than once."""
    check_attack(
        HopSkipJump(40, first=5), [brinell.core.threat.threat(norm, 1.0).norm], shape=(9,), samples=3, steps=40
    )


def test_every_phase_is_passed_through():
    """Of one row: a search of one answer, ten bisections, five points for the slope, then a step; t counts them."""
    world = duel(classes=2, n=1)
    seen = []

    class Watching(HopSkipJump):
        def step(self, s, a, p, ball):
            seen.append(int(s.phase[0]))
            return super().step(s, a, p, ball)

    brinell.attack(world.classifier, (world.x, world.y), brinell.L2(), Watching(40, first=5))
    start = seen.index(1)
    assert set(seen[:start]) == {0} and seen[start : start + 15] == [1] * halvings(24) + [2] * 5
    assert seen[start + 15] == 3 and 1 in seen[start + 16 :]


@pytest.mark.parametrize(("norm", "power"), [("L2", 1.5), ("Linf", 2.0)])
def test_bisections_are_as_fine_as_in_the_paper(norm, power):
    """To within n^−3/2 of the way in L2, n^−2 in Linf: with 100 coordinates ten and fourteen questions."""
    world = duel(classes=2, shape=(100,), n=1)
    seen = []

    class Watching(HopSkipJump):
        def step(self, s, a, p, ball):
            seen.append(int(s.phase[0]))
            return super().step(s, a, p, ball)

    brinell.attack(world.classifier, (world.x, world.y), threat(norm, math.inf), Watching(40, first=5))
    first = seen[seen.index(1) :]
    assert first.index(2) == math.ceil(power * math.log2(100))


def test_a_mask_is_kept():
    world = duel(classes=2, n=4)
    mask = torch.arange(24) % 2 == 0
    run = brinell.evaluate(
        world.classifier,
        (world.x, world.y),
        brinell.L2(0.6, mask),
        HopSkipJump(200),
        progress=False,
    )
    kept = run.adversarials()
    assert len(kept.ids) and (torch.from_numpy(kept.x)[:, ~mask] == world.x[kept.ids][:, ~mask]).all()


def test_a_sum_of_queries_is_shared_and_kept():
    world = duel(classes=3, shape=(1, 5, 5), n=8)
    short = limited(by_name("blackbox"), 100)
    assert short.name == "blackbox, 100 queries" and [s.name for s in short.stages_for(brinell.Linf(0.1))] == [
        "square",
        "hop-skip-jump",
    ]
    run = brinell.evaluate(world.classifier, (world.x, world.y), brinell.Linf(1e-4), short, progress=False)
    rows = run.rows().to_pylist()
    asked = {(r["attack"], r["forwards"]) for r in rows if r["attack"] != "clean"}
    assert asked == {("square", 50), ("hop-skip-jump", 50)}


@pytest.mark.parametrize(
    ("parts", "queries", "why"),
    [
        ([Square(), brinell.attacks.PGD()], 100, "black-box attacks only"),
        ([Square(), HopSkipJump()], 3, "at least 2 queries"),
        ([brinell.Restarts(Square(), 5)], 9, "at least 2 queries"),
    ],
)
def test_impossible_budgets(parts, queries, why):
    with pytest.raises(PlanError, match=why):
        limited(plan(parts), queries)


def test_l1_is_refused_alone_and_left_to_square_in_the_plan():
    world = duel(classes=3, shape=(1, 5, 5), n=2)
    with pytest.raises(PlanError, match="attacks that work in L1"):
        brinell.evaluate(world.classifier, (world.x, world.y), brinell.L1(0.01), HopSkipJump(5), progress=False)
    run = brinell.evaluate(
        world.classifier, (world.x, world.y), brinell.L1(1e-3), limited(by_name("blackbox"), 20), progress=False
    )
    assert run.attacks == ["square"]


@pytest.mark.parametrize("numbers", [{"steps": 0}, {"first": 0}, {"first": 1.5}])
def test_impossible_numbers(numbers):
    with pytest.raises(PlanError):
        HopSkipJump(**numbers)
