"""Empty slots run later legs of samples under way, and nothing that comes out is another."""

import importlib

import pytest
import torch
from tests.engine.fixed import CASES, Counting, Fixed, images, run

import brinell
from brinell.attacks import PGD
from brinell.core.attack import Attempt
from brinell.core.criterion import Misclassified
from brinell.core.threat import Linf
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.cuda.speculative import SpeculativeScheduler
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.rowwise import same

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("early_exit", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["apgd", "targets", "fab", "fab all"])
def test_legs_ahead_give_what_legs_one_after_another_give(case, precision, early_exit):
    attack, t, attempts = CASES[case]
    world = images()
    oracle = Oracle(world[0], 8, precision=precision)
    args = {"attempts": attempts, "oracle": oracle, "early_exit": early_exit}
    expected = run(*world, t, attack, **args)
    graph_cache = GraphCache(make=Fixed)
    for slots in (8, 24, 80):
        assert same(run(*world, t, attack, graph_cache, slots=slots, **args), expected), f"{slots} slots"
    assert 0 < int(expected.broken.sum()) < len(world[1]), "the case shows both outcomes"
    assert early_exit or graph_cache.unneeded_forwards == 0, "without an early exit everything is needed"
    assert graph_cache.unneeded_forwards > 0 or not early_exit or case.startswith("fab"), (
        "what is not needed is counted"
    )


@pytest.mark.parametrize(
    ("n", "slots", "calls"),
    [(8, 8, 50), (8, 16, 50), (4, 8, 30), (4, 16, 30), (1, 8, 10), (12, 16, 80), (1, 1, 50), (1, 2, 30)],
)
def test_empty_slots_take_on_later_legs(n, slots, calls):
    """Five legs of ten iterations, eight rows a call: as few calls as the legs fill, at most `slots` legs at once."""
    classifier, x, y = images(n)
    attempts, args = tuple(Attempt(0, k) for k in range(5)), (classifier, x, y, Linf(1e-4), PGD(steps=9))
    Counting.made = 0
    got = run(*args, GraphCache(make=Counting), attempts=attempts, slots=slots)
    assert same(got, run(*args, attempts=attempts)) and not got.broken.any()
    assert Counting.made == calls
    assert got.forwards.tolist() == [50] * n


def test_a_second_lane_is_opened_where_later_legs_fill_it():
    """Two calls under way are faster than one: eight samples, of whose legs there are enough for two lanes of eight."""
    opened = []

    class Seen(Fixed):
        def __post_init__(self, entry):
            super().__post_init__(entry)
            opened.append(self)

    for attempts, lanes in ((3, 1), (4, 2)):
        opened.clear()
        args = (*images(8), Linf(1e-4), PGD(steps=9))
        several = tuple(Attempt(0, k) for k in range(attempts))
        got = run(*args, GraphCache(make=Seen), attempts=several, slots=32)
        assert same(got, run(*args, attempts=several)) and len(opened) == lanes


def test_nothing_is_asked_ahead_where_lanes_can_be_joined():
    """All but one sample of three lanes fall at once: the others go on together, and no lane is kept for later legs."""
    net = torch.nn.Linear(5, 6).eval()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.arange(6.0))
    x = torch.rand(24, 5, generator=torch.Generator().manual_seed(1))
    y = torch.where(torch.arange(24) % 8 < 7, 0, 5)
    attempts = tuple(Attempt(0, k) for k in range(8))
    Counting.made = 0
    graph_cache = GraphCache(make=Counting)
    got = run(wrap(net), x, y, Linf(0.1), PGD(steps=9), graph_cache, attempts=attempts, slots=24)
    assert got.broken.tolist() == (y == 0).tolist()
    # A first look at three lanes, then three samples with eight legs in one: 24 legs of ten iterations in eight slots.
    assert Counting.made <= 3 + 30 + 2


def test_records_that_nobody_wants_are_let_go():
    """A sample that goes on does not keep those it ended a leg with."""
    classifier, x, y = images(16)
    ball = Linf(0.05).ball(torch.arange(16), x.device)
    attempts = tuple(Attempt(0, k) for k in range(4))
    engine = Engine(
        Oracle(classifier, 8), PGD(steps=3), Misclassified(), ball, attempts, 16,
    )  # fmt: skip
    samples = Samples.of(x, y, rng.keys(0, torch.arange(16)), ball.eps, torch.full((16, 4), -1))
    scheduler = SpeculativeScheduler(engine, samples, graph_cache=GraphCache(make=Fixed))
    while scheduler.micro_batches:
        micro_batch = scheduler.micro_batches.pop(0)
        scheduler.retire(micro_batch)
        if any(micro_batch.busy):
            scheduler.advance(micro_batch)
            scheduler.micro_batches.append(micro_batch)
        list(scheduler.drain())
        rows = [r for s in scheduler.under_way.values() for r in (s.so_far, *s.ended.values()) if r is not None]
        held = {id(r.best): len(r.best.forwards) for r in rows}
        assert sum(held.values()) <= len(rows) + 16
    assert not scheduler.under_way


def test_what_was_made_in_vain_is_told(tmp_path, monkeypatch):
    prepare = importlib.import_module("brinell.evaluation.prepare")
    context = importlib.import_module("brinell.evaluation.context")
    data, threat = brinell.data.load("demo", 24), Linf(0.15)
    plain = brinell.evaluate("demo", data, threat, "mm3", progress=False)
    # As on a GPU, without one.
    made = [GraphCache(make=Fixed)]
    monkeypatch.setattr(
        prepare, "StageContext", lambda *a, **k: context.StageContext(*a, **{**k, "graph_cache": made[0]})
    )
    run = brinell.evaluate("demo", data, threat, "mm3", progress=False)
    assert run.survivors().tolist() == plain.survivors().tolist()
    assert run.cost.forwards == plain.cost.forwards
    [note] = [n for n in run.manifest["notes"] if "extra forward" in n]
    assert f"up to {made[0].unneeded_forwards:,} extra forward passes" in note and made[0].unneeded_forwards > 0
