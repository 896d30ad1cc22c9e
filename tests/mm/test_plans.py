"""The Minimum-Margin plans: nested where theory says so, blind to the logits' scale, exact where truth is known."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, Problem
from brinell.attacks.catalogue import by_name
from brinell.core.threat import threat
from brinell.models.demo import demo_net
from brinell.testing import LinearWorld, duel, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")

N = 16


def broken(run: brinell.Run) -> set[int]:
    rows = run.rows()
    return set(rows.filter(pc.equal(rows["broken"], True))["sample_id"].to_pylist())


def rows_of(run: brinell.Run, ids: set[int], outcome: Any) -> pa.Table:
    table = outcome(run).drop_columns(["attack", "attack_hash"])
    return table.filter(pc.is_in(table["sample_id"], pa.array(sorted(ids))))


# Samples of which the later plans break one more each, among others of all kinds, and the radius.
CHAINS = [
    pytest.param(("mm3", "mm5", "mm9"), [*range(24), 46, 128], 0.16, {"mm5": {16, 46, 128}}, id="adaptive"),
    pytest.param(
        ("mm3-f10", "mm3-f20", "mm9-f20"),
        [*range(24), 31, 164],
        0.15,
        {"mm3-f20": {4, 7, 31}, "mm9-f20": {16, 164}},
        id="fixed",
    ),
]


@pytest.mark.parametrize(("names", "ids", "eps", "gains"), CHAINS)
def test_what_a_plan_breaks_the_larger_ones_break_in_the_same_way(
    names: tuple[str, ...], ids: list[int], eps: float, gains: dict[str, set[int]], quiet: Any, outcome: Any
) -> None:
    """More targets, or more of the same steps, come after the others and start from noise of their own."""
    data = brinell.data.load("demo")
    part = Problem(data.x[ids], data.y[ids], ids)
    runs = [quiet("demo", part, Linf(eps), name) for name in names]
    for smaller, larger in pairwise(runs):
        assert broken(smaller) <= broken(larger)
        assert rows_of(smaller, broken(smaller), outcome).equals(rows_of(larger, broken(smaller), outcome))
        assert smaller.cost.forwards < larger.cost.forwards
    for before, name, after in zip(runs, names[1:], runs[1:], strict=False):
        assert broken(after) - broken(before) >= gains.get(name, set())
    assert 5 < len(broken(runs[0])) < len(ids) - 5


class Coded(nn.Module):
    """The demo network with its logits multiplied by a power of two that the first pixel tells."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.net, self.scaled = demo_net(), scaled

    def forward(self, x: Tensor) -> Tensor:
        power = (16 * x[:, 0, 0, 0].detach() - 8).round()
        return self.net(x) * (2.0 ** (power if self.scaled else 0 * power))[:, None]


@pytest.mark.parametrize("plan", ["mm3", "mm3-f20"])
def test_a_scale_per_sample_changes_nothing(plan: str, quiet: Any) -> None:
    """Powers of two, so that even rounding is the same; the pixel that tells the scale may not be changed."""
    data = brinell.data.load("demo", n=32)
    codes = torch.arange(32) % 17
    x = data.x.clone()
    x[:, 0, 0, 0] = codes / 16
    mask = torch.ones(1, 28, 28, dtype=torch.bool)
    mask[0, 0, 0] = False
    plain, scaled = (quiet(Coded(s).eval(), (x, data.y), Linf(0.12, mask), plan).rows() for s in (False, True))
    for column in ("broken", "adv_pred", "distance", "first_broken_at", "target", "forwards", "backwards"):
        assert plain[column].to_pylist() == scaled[column].to_pylist(), column
    for column in ("adv_margin", "clean_margin"):
        a, b = (torch.tensor(t[column].to_pylist()) for t in (plain, scaled))
        factor = 2.0 ** (codes[torch.tensor(plain["sample_id"].to_pylist())] - 8)
        assert torch.equal(a * factor, b), column
    fell = plain.filter(pc.equal(plain["attack"], plan))["broken"].to_pylist()
    assert 4 < sum(fell) < len(fell)


def exactly(world: Any, norm: str, plan: str, share: float) -> list[bool]:
    run = brinell.evaluate(
        world.classifier, (world.x, world.y), threat(norm, world.distance(norm) * share), plan, progress=False
    )
    assert run.unverified.num_rows == 0
    rows = run.rows()
    return rows.filter(pc.equal(rows["attack"], plan))["broken"].to_pylist()


@pytest.mark.parametrize("plan", ["mm3", "mm3-f20"])
def test_three_rivals_three_targets(plan: str) -> None:
    world = linear_world(4, n=N)
    assert exactly(world, "Linf", plan, 0.99) == [False] * N
    assert exactly(world, "Linf", plan, 1.01) == [True] * N


def steep(classes: int = 10, size: int = 30) -> LinearWorld:
    """A world where the least likely class is the nearest: the further behind, the steeper, and by more."""
    generator = torch.Generator().manual_seed(0)
    x = 0.5 + 0.01 * torch.rand(N, size, generator=generator)
    signs = torch.rand(classes, size, generator=generator).round() * 2 - 1
    weight = 0.001 * signs * 2.0 ** torch.arange(classes)[:, None]
    weight[0] = 0
    behind = torch.cat([torch.zeros(1), 1 + 0.1 * torch.arange(1, classes)])
    return LinearWorld(weight, -weight @ x.mean(0) - behind, x, torch.zeros(N).long())


@pytest.mark.parametrize("plan", ["mm9", "mm9-f20", "mm+"])
def test_nine_rivals_nine_targets(plan: str) -> None:
    world = steep()
    assert exactly(world, "Linf", plan, 0.99) == [False] * N
    assert exactly(world, "Linf", plan, 1.01) == [True] * N


@pytest.mark.parametrize("plan", ["mm3", "mm5", "mm3-f20"])
def test_fewer_targets_miss_the_nearest_class_where_it_is_unlikely(plan: str) -> None:
    assert exactly(steep(), "Linf", plan, 1.01) == [False] * N


@pytest.mark.parametrize("norm", ["L2", "L1"])
def test_other_norms(norm: str) -> None:
    world = duel(n=N)
    assert exactly(world, norm, "mm+", 0.99) == [False] * N
    assert exactly(world, norm, "mm+", 1.01) == [True] * N


def test_budgets_are_those_of_the_paper() -> None:
    """Steps and targets, Gao et al. 2022, sec. 4.1 and Table 6."""
    budgets = {"mm3": (20, 3), "mm5": (20, 5), "mm9": (20, 9), "mm+": (100, 9)}
    budgets |= {"mm3-f10": (10, 3), "mm3-f20": (20, 3), "mm9-f20": (20, 9)}
    for name, (steps, targets) in budgets.items():
        (stage,) = by_name(name).stages_for(Linf(0.1))
        assert (stage.attack.steps, len(stage.ranks), stage.attack.loss) == (steps, targets, "minimum-margin")
        assert stage.restarts == 1


def test_runs_made_before_still_resume() -> None:
    """A stage that does not use the later fields has the hash it always had."""
    known = {"mm3": "64cf66de9f3b9f96", "mm9-f20": "fea6ac75e1d436c3", "apgd-t": "7a0f175d6cfb2935"}
    assert {name: by_name(name).stages_for(Linf(0.1))[0].to_json()["hash"] for name in known} == known
