"""Seven rescalings of the minimum margin: equal where the truth leaves no choice, and the algebra of their sets."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import brinell
from brinell import Linf, PlanError, Problem
from brinell.analysis.rescalings import RESCALINGS, from_run, places, rescaling_plan, rescalings, successes
from brinell.attacks.catalogue import by_name
from brinell.core.threat import threat
from brinell.models.demo import demo_net
from brinell.testing import LinearWorld, duel, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")

LOSSES = [r.loss for r in RESCALINGS]
IDS = st.frozensets(st.integers(0, 30), max_size=31)


def shifted(world: LinearWorld, by: float = 4.0) -> LinearWorld:
    """All logits larger by a constant, which decides nothing: Max and Sum divide by logits and want them positive."""
    return replace(world, bias=world.bias + by)


def sets(table: Any) -> list[set[int]]:
    """Every line's set, from the rows and not from the table."""
    rows = table.run.rows()
    fell = rows.filter(pc.equal(rows["verified"], True))
    pairs = list(zip(fell["attack"].to_pylist(), fell["sample_id"].to_pylist(), strict=True))
    return [{i for name, i in pairs if name in ("clean", loss)} for loss in LOSSES]


def known(world: LinearWorld) -> tuple[Problem, float, set[int]]:
    """Samples whose distance differs from eps by more than 3 %, eps, and which of them must fall."""
    distance = world.distance("Linf")
    eps = float(distance.median())
    clear = ((distance / eps - 1).abs() > 0.03).nonzero()[:, 0]
    truth = set(clear[distance[clear] < eps].tolist())
    assert 4 < len(truth) < len(clear) - 4
    return Problem(world.x[clear], world.y[clear], clear), eps, truth


@pytest.mark.parametrize("steps", ["fixed", "adaptive"])
def test_with_one_rival_all_sets_are_that_of_the_closed_form(steps: str) -> None:
    """Four classes, since with two Min-Max is constant, and DLR needs four; two of them far behind everywhere."""
    world = shifted(duel(4, n=16))
    data, eps, truth = known(world)
    table = rescalings(world.classifier, data, Linf(eps), steps=steps, targets=1, progress=False)
    assert sets(table) == [truth] * 7
    assert [line.place for line in table.lines] == ["=1"] * 7
    assert {(line.difference, len(line.only_here), len(line.only_natural)) for line in table.lines} == {(0, 0, 0)}


def test_with_many_rivals_only_natural_logits_must_reach_it() -> None:
    """Their loss is linear here. Others may stop short, and none may break what cannot be broken."""
    world = shifted(linear_world(5, n=16))
    data, eps, truth = known(world)
    natural, *others = sets(rescalings(world.classifier, data, Linf(eps), targets=4, progress=False))
    assert natural == truth
    assert all(b <= truth for b in others)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["L2", "L1"])
def test_natural_logits_are_exact_in_other_norms_too(norm: str) -> None:
    world = duel(n=16)
    near, far = (
        rescalings(world.classifier, (world.x, world.y), threat(norm, world.distance(norm) * s), steps="adaptive",
                   targets=1, progress=False)
        for s in (0.99, 1.01)
    )  # fmt: skip
    assert (near.sizes["minimum-margin"], far.sizes["minimum-margin"]) == (0, 16)
    assert near.union.k == 0


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.net, self.factor = demo_net(), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


@pytest.fixture(scope="module")
def tables() -> dict[int, Any]:
    """On the demo model, as it is and with logits so large that float32 knows no other probability than 0 and 1."""
    data = brinell.data.load("demo")[:24]
    return {f: rescalings(Scaled(f).eval(), data, Linf(0.15), targets=1, progress=False) for f in (1, 4096)}


def test_saturation_blinds_softmax_and_sigmoid_and_not_the_natural_logits(tables: dict[int, Any]) -> None:
    plain, large = tables[1].sizes, tables[4096].sizes
    for loss in ("minimum-margin", "mm-max", "mm-sum", "mm-min-max"):
        assert large[loss] == plain[loss], loss
    # DLR adds 1e-12 to what it divides by, which the larger logits round away.
    assert abs(large["dlr-targeted"] - plain["dlr-targeted"]) <= 1
    for loss in ("mm-softmax", "mm-sigmoid"):
        assert large[loss] < plain["minimum-margin"] - 3, loss
        assert large[loss] >= tables[4096].clean.n - tables[4096].clean.k
    assert tables[4096].lines[0].rescaling.id == "A"
    assert tables[4096].lines[0].place.lstrip("=") == "1"


def test_the_table_is_what_its_rows_say(tables: dict[int, Any]) -> None:
    for table in tables.values():
        mine = sets(table)
        for line, b in zip(table.lines, mine, strict=True):
            assert line.size == len(b)
            assert line.share.n == 24
            assert line.only_here == (mine[0] | b) - mine[0]
            assert line.only_natural == (mine[0] | b) - b
            assert line.difference == len(b) - len(mine[0])
        assert table.union.k == len(set().union(*mine))
        assert table.run.unverified.num_rows == 0
        wrong = table.run.rows().filter(pc.equal(table.run.rows()["attack"], "clean"))["broken"].to_pylist()
        assert min(map(len, mine)) >= sum(wrong) == table.clean.n - table.clean.k > 0
        told = json.loads(json.dumps(table.to_json()))
        assert [v["size"] for v in told["lines"]] == list(table.sizes.values())


@pytest.mark.parametrize(
    ("steps", "plan"), [("fixed", "mm9-f20"), pytest.param("adaptive", "mm+", marks=pytest.mark.slow)]
)
def test_natural_logits_are_the_plan(steps: str, plan: str, net: nn.Module, images: Any, quiet: Any) -> None:
    """Row by row: the same noise, steps and targets."""
    data = (images[0][:10], images[1][:10])
    table = rescalings(net, data, Linf(0.018), steps=steps, progress=False)
    alone = quiet(net, data, Linf(0.018), plan)
    drop = ["attack", "attack_hash", "seconds", "adv_shard", "adv_row"]
    mine, theirs = (
        run.rows().filter(pc.equal(run.rows()["attack"], name)).drop_columns(drop).combine_chunks()
        for run, name in ((table.run, "minimum-margin"), (alone, plan))
    )
    assert mine.equals(theirs)
    assert 0 < table.lines[0].size < 10


@pytest.mark.parametrize(("steps", "name"), [("fixed", "mm9-f20"), ("adaptive", "mm+")])
def test_all_rescalings_start_as_the_plan_does(steps: str, name: str) -> None:
    plan, known = rescaling_plan(steps), by_name(name)
    for bound in (brinell.Linf(0.1), brinell.L1(1)):
        stages, (natural,) = plan.stages_for(bound), known.stages_for(bound)
        assert [s.attack.loss for s in stages] == LOSSES
        assert {(s.noise, s.ranks) for s in stages} == {(natural.attack.name, natural.ranks)}
        assert {replace(s.attack, loss="minimum-margin") for s in stages} == {natural.attack}


def test_resumed_and_read_again(net: nn.Module, images: Any, tmp_path: Path) -> None:
    data = (images[0][:6], images[1][:6])
    arguments = {"targets": 1, "out": tmp_path / "run", "progress": False}
    first = rescalings(net, data, Linf(0.018), **arguments)
    again = rescalings(net, data, Linf(0.018), **arguments, resume=True)
    assert first.lines == again.lines == from_run(brinell.Run.open(tmp_path / "run"), "fixed").lines
    assert brinell.verify(first.run, net, data).ok


def test_three_classes_say_what_stands_in_for_dlr() -> None:
    world = linear_world(3, n=6)
    table = rescalings(world.classifier, (world.x, world.y), Linf(0.02), progress=False)
    assert any("dlr-targeted" in note for note in table.run.manifest["notes"])
    assert table.sizes["dlr-targeted"] == table.sizes["minimum-margin"]


@settings(max_examples=50, deadline=None)
@given(st.lists(IDS, min_size=7, max_size=7))
def test_set_algebra(broken: list[frozenset[int]]) -> None:
    lines = successes(broken, 31)
    a = broken[0]
    for line, b in zip(lines, broken, strict=True):
        assert line.only_here == (a | b) - a
        assert line.only_natural == (a | b) - b
        assert line.difference == len(line.only_here) - len(line.only_natural)
        assert line.size == len(b) == line.share.k


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        # Gao et al. 2022, Tables 2 and 4.
        ([5219, 5172, 5165, 5165, 5121, 5078, 4820], ["1", "2", "=3", "=3", "5", "6", "7"]),
        ([5379, 5377, 5374, 5374, 5376, 5372, 5311], ["1", "2", "=4", "=4", "3", "6", "7"]),
        ([3, 3, 3], ["=1", "=1", "=1"]),
        ([1, 2, 3, 3, 1], ["=4", "3", "=1", "=1", "=4"]),
        ([0], ["1"]),
    ],
)
def test_ranking_with_ties(sizes: list[int], wanted: list[str]) -> None:
    assert places(sizes) == wanted


def test_published_columns_follow_from_published_sizes() -> None:
    """diff. = |A ∪ B − A| − |A ∪ B − B| in every line of the paper's Table 2, so that is what its columns mean."""
    for size, only_here, only_natural in [(5172, 4, 51), (5165, 5, 59), (5121, 3, 101), (5078, 2, 143), (4820, 1, 400)]:
        assert size - 5219 == only_here - only_natural


def test_unknown_steps_are_refused() -> None:
    with pytest.raises(PlanError, match="fixed"):
        rescalings("demo", "demo", Linf(0.1), steps="both")


def test_the_plan_of_all_rescalings_breaks_the_union_of_their_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another on the survivors, from the same starts: together exactly what each breaks alone."""
    monkeypatch.setattr(import_module("brinell.analysis.rescalings"), "ADAPTIVE_STEPS", 4)
    data, eps = brinell.data.load("demo", 24), 0.13
    table = rescalings("demo", data, Linf(eps), steps="adaptive", targets=1, progress=False)
    run = brinell.evaluate("demo", data, Linf(eps), "mm-rescalings", steps=4, targets=1, progress=False)
    rows = run.rows()
    broken = set(rows.filter(pc.equal(rows["verified"], True))["sample_id"].to_pylist())
    assert broken == set().union(*sets(table))
    assert 4 < len(broken) < 22
    assert run.cost.backwards < table.run.cost.backwards
