"""The layers of evidence: who is near the boundary, how far the full plan goes, and that no schedule changes it."""

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brinell
from brinell import Plan, PlanError, Run, Stage
from brinell.attacks import PGD, RandomSearch
from brinell.evaluation import run_stage
from brinell.evaluation.audit import attacked
from brinell.results import Audit, Cost, Layers, StageResult, Writer
from brinell.results.format.manifest import StageRecord
from brinell.results.format.schema import margin_left
from brinell.results.layers import Ring, ring_edges
from brinell.verification.attacked import all_contradictions

pytestmark = pytest.mark.usefixtures("unchecked")

NEAR = 0.1
FREE = Cost(0, 0, 0.0, 0)


def layered(steps: int) -> Plan:
    """A short stage of so many small steps, a search of few queries, the full plan near the boundary."""
    short = Stage(PGD(steps=steps, rel_step=0.25), label="short")
    search = Stage(RandomSearch(steps=4), label="search", noise="search")
    full = Stage(PGD(steps=20, rel_step=0.25), share=1e-6, near=NEAR, label="full")
    return Plan("layered", (short, search, full), strength="audited")


@pytest.fixture(scope="module")
def weak(truth: Any) -> Run:
    """Five steps of a quarter of eps from a random start miss some of those near the boundary."""
    return truth.evaluate(layered(5))


@pytest.fixture(scope="module")
def widened(truth: Any) -> Run:
    return truth.evaluate(layered(5), escalate=None)


def by_hand(run: Run) -> dict[int, float]:
    """What the short plan left of the margin of its survivors."""
    rows = run.rows().to_pylist()
    fell = {r["sample_id"] for r in rows if r["broken"] and r["attack"] in ("clean", "short", "search")}
    left: dict[int, float] = {}
    for r in rows:
        if r["attack"] in ("short", "search") and r["sample_id"] not in fell:
            share = r["adv_margin"] / r["clean_margin"]
            left[r["sample_id"]] = min(share, left.get(r["sample_id"], math.inf))
    return left


def full(run: Run) -> set[int]:
    return {r["sample_id"] for r in run.rows().to_pylist() if r["attack"] == "full"}


def test_the_full_plan_attacks_who_is_near(weak: Run) -> None:
    left = by_hand(weak)
    near = {i for i, share in left.items() if share < NEAR}
    assert 0 < len(near) < len(left)
    assert full(weak) == near


def test_rings_are_what_the_rows_say(weak: Run, truth: Any) -> None:
    left, layers = by_hand(weak), weak.layers
    assert layers is not None
    assert [(r.low, r.high) for r in layers.rings] == [(0.0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 0.8)]
    for ring in layers.rings:
        assert ring.survivors == sum(
            ring.low <= share < ring.high or (not ring.low and share < 0) for share in left.values()
        )
    near = {i for i, share in left.items() if share < NEAR}
    assert (layers.rings[0].attacked, layers.rings[0].broken) == (len(near), len(near & truth.breakable))
    assert [r.attacked for r in layers.rings[1:]] == [0, 0, 0]


def test_it_goes_on_as_long_as_it_breaks(widened: Run, weak: Run, truth: Any) -> None:
    """The truth is known: all that can be broken is, and who is far away is never attacked at full strength."""
    assert set(widened.survivors().tolist()) == truth.everyone - truth.breakable
    assert len(weak.survivors()) > len(widened.survivors())
    layers, left = widened.layers, by_hand(weak)
    assert layers is not None and layers.complete
    assert NEAR < layers.reach < math.inf
    assert full(widened) == {i for i, share in left.items() if share < layers.reach}
    assert next(r for r in layers.rings if r.high == layers.reach).broken == 0


def test_where_nothing_is_missed_nothing_more_runs(truth: Any, outcome: Any) -> None:
    plain, willing = truth.evaluate(layered(20)), truth.evaluate(layered(20), escalate=None)
    assert outcome(plain).equals(outcome(willing))
    assert willing.layers is not None and willing.layers.reach == NEAR
    assert willing.verdict.level == "reliable", willing.verdict


def test_who_may_not_go_on_says_so(weak: Run) -> None:
    assert weak.verdict.level == "suspicious"
    assert "The full plan broke survivors near the boundary" in str(weak.verdict)


# ------------------------------------------------------------------------------------------------------- no schedule


def test_slots_order_and_chunks(widened: Run, truth: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(truth.evaluate(layered(5), escalate=None, slots=5)).equals(outcome(widened))
    order = torch.randperm(len(truth.world.y), generator=torch.Generator().manual_seed(1))
    data = brinell.Problem(truth.world.x[order], truth.world.y[order], order.tolist())
    threat = brinell.Linf(truth.eps)
    shuffled = brinell.evaluate(truth.world.classifier, data, threat, layered(5), progress=False)
    assert outcome(shuffled).equals(outcome(widened))
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", 25)
    assert outcome(truth.evaluate(layered(5), escalate=None)).equals(outcome(widened))


class StopError(Exception):
    pass


@pytest.mark.parametrize("after", [4, 9, 14])
def test_an_interrupted_run_goes_on(after: int, widened: Run, truth: Any, tmp_path: Path, outcome: Any) -> None:
    append, left = Writer.append, [after]

    def failing(self: Writer, *args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StopError
        append(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 10)
        patch.setattr(Writer, "append", failing)
        with pytest.raises(StopError):
            truth.evaluate(layered(5), escalate=None, out=tmp_path / "run", slots=7)
    run = truth.evaluate(layered(5), escalate=None, out=tmp_path / "run", resume=True, slots=32)
    assert run.finished
    assert outcome(run).equals(outcome(widened))


def test_parts_are_near_as_the_whole(weak: Run, truth: Any, tmp_path: Path, outcome: Any) -> None:
    for name, part in (("a", slice(0, 41)), ("b", slice(41, None))):
        truth.evaluate(layered(5), part=part, out=tmp_path / name)
    merged = Run.merge([tmp_path / "b", tmp_path / "a"], tmp_path / "merged")
    assert outcome(merged).equals(outcome(weak))
    assert merged.layers is not None and weak.layers is not None
    assert merged.layers.rings == weak.layers.rings


def test_a_wider_ring_contains_the_narrower_ones() -> None:
    stage, ids, left = layered(5).stages[2], torch.arange(200), np.linspace(0, 1, 200).tolist()
    masks = [attacked(stage, 0, ids, left, reach) for reach in (0.0, 0.1, 0.2, 0.9, math.inf)]
    assert torch.equal(masks[0], masks[1])
    assert all(bool((a <= b).all()) and int(a.sum()) < int(b.sum()) for a, b in pairwise(masks[1:]))
    assert bool(masks[-1].all())


def test_the_scale_of_the_logits_does_not_matter() -> None:
    columns = {"clean_margin": [-4.0, -8.0, -3.0, -2.0], "adv_margin": [-1.0, -2.0, None, float("nan")]}
    one = margin_left(pa.table(columns))
    scaled = {name: [None if v is None else 1000 * v for v in values] for name, values in columns.items()}
    assert one.tolist() == margin_left(pa.table(scaled)).tolist() == [0.25, 0.25, math.inf, math.inf]


# ---------------------------------------------------------------------------------------------------------- the rules


def rings(*broken: int, attacked: int = 4) -> tuple[Ring, ...]:
    return tuple(Ring(0.1 * k, 0.1 * (k + 1), 4, attacked if b >= 0 else 0, max(b, 0)) for k, b in enumerate(broken))


@pytest.mark.parametrize(
    ("n", "search", "found", "reach"),
    [
        (500, 0, (0, -1, -1), 0.1),  # nothing found: no further
        (500, 1, (0, -1, -1), 0.1),  # a single sample may fall to luck
        (500, 2, (0, -1, -1), math.inf),  # black-box search beats gradients
        (5000, 5, (0, -1, -1), 0.1),
        (5000, 6, (0, -1, -1), math.inf),
        (500, 0, (1, -1, -1), 0.1),  # here too
        (500, 0, (2, -1, -1), 0.2),  # on to the next ring
        (500, 0, (2, 0, -1), 0.2),
        (500, 0, (0, 1, -1), 0.1),
        (500, 0, (1, 1, -1), 0.3),  # some attack of the full plan went further and found something
        (500, 0, (3, 1, 1), math.inf),  # every ring breaks
        (20_000, 0, (2, -1, -1), 0.1),  # 2 of 20,000 are tolerated
        (20_000, 0, (3, -1, -1), 0.2),
    ],
)
def test_how_far_the_full_plan_goes(n: int, search: int, found: tuple[int, ...], reach: float) -> None:
    layers = Layers(n, (StageResult("search", 300, search),), rings(*found))
    assert layers.reach == pytest.approx(reach)
    assert bool(layers.doubt) == (reach == math.inf)
    assert layers.complete == (reach < math.inf and all(b >= 0 for b in found[: round(10 * reach)]))


@pytest.mark.parametrize(
    ("near", "edges"),
    [((0.1, 0.3), (0.1, 0.2, 0.4, 0.8)), ((0.05, 0.25), (0.05, 0.1, 0.2, 0.4)), ((0.01,), (0.01, 0.05, 0.1, 0.2, 0.4))],
)
def test_edges_of_the_rings(near: tuple[float, ...], edges: tuple[float, ...], weak: Run) -> None:
    """A narrow first ring is followed by one up to 5 %; the edges of earlier plans are what they were."""
    stages = tuple(StageRecord(str(width), share=0.1, near=width) for width in near)
    stored = replace(weak.identity.plan, stages=stages)
    assert ring_edges(stored) == pytest.approx(edges)


@pytest.mark.parametrize("near", [0.3, 0.7])
def test_a_stage_may_go_further_than_the_others(truth: Any, near: float) -> None:
    """What it breaks out there makes the others follow."""
    short, search, full = layered(5).stages
    again = replace(full, label="again", near=near)
    plan = replace(layered(5), stages=(short, search, again, full))
    run, plain = truth.evaluate(plan, escalate=None), truth.evaluate(plan)
    assert run.layers is not None and plain.layers is not None
    assert [r.high for r in plain.layers.rings] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert plain.layers.rings[1].broken > 0 and not plain.layers.complete
    assert set(run.survivors().tolist()) == truth.everyone - truth.breakable
    assert run.layers.reach == pytest.approx(0.4)
    assert run.layers.complete
    assert run.verdict.level == "reliable", run.verdict
    names = [r["attack"] for r in plain.rows().to_pylist()]
    assert names.count("full") < names.count("again")
    (seen,) = plain.layers.near
    assert (seen.attack, seen.attacked) == ("again", names.count("again")) and seen.broken > 0
    said = f"Again, near the boundary: {seen.attacked} attacked, {seen.broken} broken."
    assert said in plain.verdict.evidence


def test_a_random_sample_that_contradicts_leads_to_all() -> None:
    audit = Audit(survivors=400, audited=4, found=2, n=500, rest=396, cost=FREE)
    assert Layers(500, (), rings(0, -1), audit).reach == math.inf
    assert Layers(500, (), rings(0, -1), replace(audit, found=0)).reach == pytest.approx(0.1)


def test_successes_per_pass_of_both_kinds_of_attacks_are_evidence(widened: Run) -> None:
    rows = widened.rows().to_pylist()
    told = []
    for kind, names in (("with gradients", ("short", "full")), ("without", ("search",))):
        mine = [r for r in rows if r["attack"] in names]
        spent, hits = sum(r["forwards"] + r["backwards"] for r in mine), sum(r["broken"] for r in mine)
        told.append(f"ttacks {kind} broke {hits} sample{'' if hits == 1 else 's'} in {spent:,} passes")
    (line,) = [e for e in widened.verdict.evidence if "per 1,000" in e]
    assert all(part in line for part in told), line


def test_few_samples_are_too_few(truth: Any) -> None:
    """The layers are silent, and the small random sample is no objection; the number of samples is."""
    run = truth.evaluate(layered(20), part=slice(0, 60))
    assert run.layers is not None and run.layers.complete
    assert run.verdict.level == "upper bound"
    assert [f.name for f in run.verdict.findings] == ["too few samples"]


def test_a_search_that_beats_gradients_is_followed_by_everything(truth: Any) -> None:
    """A stage without a step, and a search that finds what it can."""
    short = Stage(PGD(steps=1, rel_step=0.01), label="short")
    search = Stage(RandomSearch(steps=300), label="search", noise="search")
    plan = replace(layered(1), stages=(short, search, layered(1).stages[2]))
    run = truth.evaluate(plan, escalate=None)
    assert run.layers is not None and run.layers.search[0].broken > 1
    assert run.audit is not None and run.audit.complete
    assert set(run.survivors().tolist()) == truth.everyone - truth.breakable
    assert [note for note in run.notes if note.endswith("so the full plan attacked all survivors.")]
    assert "The black-box attack search broke" in str(run.verdict)


def test_honest_runs_of_every_reach_hold_together(weak: Run, widened: Run, truth: Any) -> None:
    everyone = truth.evaluate(layered(20), escalate=True)
    assert everyone.audit is not None and everyone.audit.complete
    assert [all_contradictions(run) for run in (weak, widened, everyone)] == [[], [], []]


def test_a_sample_left_out_near_the_boundary_is_noticed(widened: Run) -> None:
    """One row of the full plan is missing, of a sample in the middle of what was attacked."""
    left = by_hand(widened)
    gone = sorted(full(widened) & set(widened.survivors().tolist()), key=lambda i: left[i])[0]
    rows = widened.rows()
    keep = [
        (i, a) != (gone, "full") for i, a in zip(rows["sample_id"].to_pylist(), rows["attack"].to_pylist(), strict=True)
    ]
    run = Run.open(widened.path)
    run.__dict__["_table"] = rows.filter(pa.array(keep))
    found = [f.message for f in all_contradictions(run)]
    assert any(f"full did not attack 1 samples that stood, such as sample {gone}" in message for message in found)


@pytest.mark.parametrize(("near", "share"), [(0.0, 0.1), (1.0, 0.1), (0.1, None), (float("nan"), 0.1)])
def test_widths_that_make_no_sense(near: float, share: float | None) -> None:
    with pytest.raises(PlanError, match="near between 0 and 1"):
        Stage(PGD(), share=share, near=near)
