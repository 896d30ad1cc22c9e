"""Pursuit where the truth is known, at the cost its rule says, and blind to what must not matter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.attacks import Pursuit
from brinell.attacks.pursuit import AGAIN, CHECKPOINTS, FAR, FAR_AT_FIRST, FEW, NEAR, UNTARGETED
from brinell.core.attack import Batch, Requires
from brinell.core.threat import threat
from brinell.engine.oracle import Oracle
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import LinearWorld, duel, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")

N = 16
EVERY_NORM = pytest.mark.parametrize("norm", NORMS)
WORLDS = {"one rival": duel(n=N), "five classes": linear_world(5, n=N)}
EVERY_WORLD = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())


def told(world: LinearWorld, norm: str, eps: Tensor, attack: Pursuit | None = None) -> dict[str, list[Any]]:
    table = brinell.attack(world.classifier, (world.x, world.y), threat(norm, eps), attack or Pursuit())
    return {name: table[name].to_pylist() for name in ("broken", "forwards", "backwards", "first_broken_at")}


# ------------------------------------------------------------------------------------------------------------ the truth


@EVERY_WORLD
@EVERY_NORM
def test_breaks_whom_it_can_and_nobody_else(world: LinearWorld, norm: str) -> None:
    assert told(world, norm, world.distance(norm) * 0.99)["broken"] == [False] * N
    assert told(world, norm, world.distance(norm) * 1.01)["broken"] == [True] * N


@EVERY_NORM
def test_the_order_of_the_targets_does_not_decide(norm: str) -> None:
    """In a world of five classes the likeliest wrong class is not always the nearest; every one is tried."""
    world = WORLDS["five classes"]
    gap, _ = world.gaps()
    likeliest = gap.masked_fill(gap == 0, torch.inf).argmin(1)
    nearest = world.distances(norm).argmin(1)
    assert (likeliest != nearest).any(), "the test tests nothing"
    one = told(world, norm, world.distance(norm) * 1.01, Pursuit(targets=1, again=0))["broken"]
    assert not all(one)


# ------------------------------------------------------------------------------------------------------- cost, by hand


def test_the_rule_the_costs_below_are_computed_from() -> None:
    assert (CHECKPOINTS[:3], FAR_AT_FIRST, FAR, FEW, UNTARGETED, NEAR, AGAIN) == (
        (0, 1, 3),
        2.5,
        1.5,
        3,
        10,
        0.03,
        0.08,
    )


@pytest.mark.parametrize(("classes", "answers"), [(2, 2), (3, 3), (4, 4), (5, 4), (12, 4)])
@EVERY_NORM
def test_hopeless_samples_cost_one_answer_a_run(norm: str, classes: int, answers: int) -> None:
    """The gap of every class is at least 4 at the clean point and 3 at a random one, beyond 2.5.

    One answer for the untargeted run and one for each of at most three targets, of which there are classes − 1.
    """
    world = linear_world(classes, n=N)
    found = told(world, norm, world.distance(norm) / 4)
    assert found["broken"] == [False] * N
    assert found["forwards"] == found["backwards"] == [answers] * N


@pytest.mark.parametrize(
    ("gap", "answers"),
    [
        # One step shows all there is: from the clean point to the corner of the ball, the gap falls by exactly 1, and
        # within 1.5 the run goes past the second look. At the third, after answer 3, nothing more was gained: 4 answers
        # for the untargeted run, 4 for the one target, and the gap is too wide to try again.
        (2.0, 4 + 4),
        (1.5, 4 + 4),
        # As before, and 0.05 is below 0.08 but not below 0.04: two repetitions. No earlier run gained anything after
        # its second look, so they end there, after 2 answers.
        (1.05, 4 + 4 + 2 * 2),
        # 0.025 is near: every run lasts to its end, the first for 10 steps, the others for 50; below 0.08 and 0.04,
        # not below 0.02: four repetitions.
        (1.025, 11 + 51 + 4 * 51),
    ],
)
def test_the_cost_of_coming_close(gap: float, answers: int) -> None:
    world = linear_world(2, n=N)
    found = told(world, "Linf", world.distance("Linf") / gap)
    assert found["broken"] == [False] * N
    assert found["forwards"] == found["backwards"] == [answers] * N


def test_the_second_look_ends_a_run_that_one_step_does_not_bring_within_range() -> None:
    """Only without room can a step gain less than the gap needs: with a zero step a gap of 2 ends at the second look.

    The first answer says 2, within 2.5; the second says 2 again, beyond 1.5.
    """
    world = linear_world(2, n=4)
    p = _rows(world)
    ball = threat("Linf", world.distance("Linf") / 2).ball(torch.arange(4), torch.device("cpu"))
    attack, oracle = Pursuit(), Oracle(world.classifier, 4)
    s = attack.init(p, ball)
    attempts = []
    for _ in range(2):
        a = oracle.query(p.x, p.y, s.target, attack.loss, Requires.GRAD)  # as if it had not moved
        s = attack.step(s, a, p, ball)
        attempts.append(s.attempt.tolist())
    assert attempts == [[0] * 4, [1] * 4]


def test_a_broken_sample_costs_no_more() -> None:
    """From the clean point the first step of Linf lands on the far corner: the second answer is the success."""
    world = linear_world(2, n=N)
    found = told(world, "Linf", world.distance("Linf") * 1.01)
    assert found["forwards"] == [2] * N
    assert found["first_broken_at"] == [1] * N


def _rows(world: LinearWorld) -> Batch:
    return Batch(world.x, world.y, rng.keys(0, torch.arange(len(world.y))), torch.full_like(world.y, -1))


def _aims(world: LinearWorld, eps: Tensor) -> list[list[int]]:
    """The classes each sample's runs go to, in order; −1 is any class."""
    p, attack, oracle = _rows(world), Pursuit(steps=5), Oracle(world.classifier, 4)
    ball = threat("Linf", eps).ball(torch.arange(len(world.y)), torch.device("cpu"))
    s = attack.init(p, ball)
    seen: list[dict[int, int]] = [{} for _ in world.y]
    while bool((s.t < attack.queries).any()):
        for i, (t, attempt, target) in enumerate(zip(s.t.tolist(), s.attempt.tolist(), s.target.tolist(), strict=True)):
            if t < attack.queries:
                seen[i][attempt] = target
        s = attack.step(s, oracle.query(s.x, p.y, s.target, attack.loss, Requires.GRAD), p, ball)
    return [[d[attempt] for attempt in sorted(d)] for d in seen]


def test_who_is_tried_in_which_order() -> None:
    """Any class, then the wrong classes from the likeliest on; three classes have two of them."""
    for classes in (2, 3, 6):
        world = linear_world(classes, n=8)
        gap, _ = world.gaps()
        order = gap.masked_fill(gap == 0, torch.inf).argsort(1)[:, : classes - 1].tolist()
        hopeless = _aims(world, world.distance("Linf") / 4)
        assert hopeless == [[-1, *row[:FEW]] for row in order]
        reached = _aims(world, world.distance("Linf") / 1.5)
        assert reached == [[-1, *row] for row in order], "one run begins within reach, so every class is tried"


# ------------------------------------------------------------------------------------------------- what must not matter


class Scaled(nn.Module):
    """The logits of a network, times a number, before as many classes that are far behind."""

    def __init__(self, net: nn.Module, factor: float = 1.0, padding: int = 0) -> None:
        super().__init__()
        self.net, self.factor, self.padding = net, factor, padding

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x) * self.factor
        return torch.cat([z, z.new_full((len(z), self.padding), -1e4)], 1)


def network(classes: int = 12) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for w in net.parameters():
            w.copy_(torch.randn(w.shape, generator=generator) / w[0].numel() ** 0.5)
        net[3].bias -= net(torch.rand(256, 1, 8, 8, generator=generator)).mean(0)
    return net.eval().requires_grad_(False)


EPS = {"Linf": 0.03, "L2": 0.2, "L1": 0.8}
SAME = ("broken", "forwards", "backwards", "first_broken_at", "adv_pred", "distance", "target")


@pytest.fixture(scope="module")
def cloud() -> brinell.Problem:
    x = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return brinell.Problem(x, network()(x).argmax(1))


@pytest.fixture(scope="module")
def plain(cloud: brinell.Problem) -> dict[str, brinell.Run]:
    return {norm: run_of(Scaled(network()), cloud, norm) for norm in NORMS}


def run_of(net: nn.Module, data: brinell.Problem, norm: str, attack: Any = None) -> brinell.Run:
    plan = brinell.plan([attack or Pursuit(steps=14, targets=4, again=4)], name="mine")
    return brinell.evaluate(net.eval(), data, threat(norm, EPS[norm]), plan, progress=False)


def identical(a: brinell.Run, b: brinell.Run) -> None:
    assert 0 < a.robust_accuracy.k < a.robust_accuracy.n, "all samples end alike: the test tests little"
    for name in SAME:
        assert a.rows()[name].to_pylist() == b.rows()[name].to_pylist(), name
    one, two = a.adversarials(), b.adversarials()
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.x, two.x)


@EVERY_NORM
def test_the_scale_of_the_logits_does_not_matter(norm: str, cloud: brinell.Problem, plain: Any) -> None:
    """Bit for bit, for powers of two; the margins themselves do scale, so a rule in units of logits would differ."""
    for factor in (2.0**10, 2.0**-8):
        other = run_of(Scaled(network(), factor), cloud, norm)
        identical(plain[norm], other)
        margins = [np.asarray(r.rows()["adv_margin"], dtype=np.float64) for r in (plain[norm], other)]
        assert np.array_equal(margins[0] * factor, margins[1])


def test_cross_entropy_would_see_the_scale(cloud: brinell.Problem) -> None:
    """A control: the same comparison fails for an attack that follows another loss."""
    runs = [run_of(Scaled(network(), f), cloud, "L2", brinell.attacks.APGD(steps=3)) for f in (1.0, 2.0**10)]
    with pytest.raises(AssertionError):
        identical(*runs)


@EVERY_NORM
def test_the_number_of_classes_does_not_matter(norm: str, cloud: brinell.Problem, plain: Any) -> None:
    for padding in (100, 1000):
        padded = run_of(Scaled(network(), padding=padding), cloud, norm)
        assert padded.manifest["identity"]["model"]["classes"] == 12 + padding
        identical(plain[norm], padded)


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes(classes: int) -> None:
    """Nothing is adapted and nothing is targeted twice: at 6 steps at most 7 answers for each of the runs there are."""
    net = network(classes)
    x = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    run = run_of(net, brinell.Problem(x, net(x).argmax(1)), "Linf", Pursuit(steps=6, again=0))
    assert 0 < run.robust_accuracy.k < 32
    assert run.manifest["notes"] == []
    assert max(run.rows()["forwards"].to_pylist()) <= 7 * classes
    assert brinell.verify(run, net, brinell.Problem(x, net(x).argmax(1))).ok


def test_more_targets_and_repetitions_never_lose_a_sample(cloud: brinell.Problem) -> None:
    """A sample's first runs are the same however many may follow."""
    runs = [run_of(network(), cloud, "Linf", Pursuit(25, targets=t, again=a)) for t, a in ((1, 0), (4, 0), (11, 8))]
    survivors = [set(r.survivors().tolist()) for r in runs]
    assert survivors[0] >= survivors[1] >= survivors[2]


@pytest.mark.parametrize("number", ["steps", "targets"])
def test_numbers_that_make_no_sense(number: str) -> None:
    with pytest.raises(brinell.PlanError, match=number):
        replace(Pursuit(), **{number: 0})
