"""Lanes of fixed memory, as on a GPU: side by side, reused, joined at the end; none of it changes an outcome."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.engine.fixed import CASES, Fixed, images, run

import brinell
from brinell.attacks import APGD, PGD, Pursuit
from brinell.core.attack import Attempt
from brinell.core.criterion import Misclassified, Targeted
from brinell.core.threat import L2, Linf
from brinell.engine.accelerate import accelerated, concurrent_scheduler, resolve_execution
from brinell.engine.cuda import scheduler
from brinell.engine.cuda.graphs import CapturedMicroBatch, GraphCache, no_garbage_collection
from brinell.engine.events import Note
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.rowwise import concat, same, take

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("look", [1, 8])
@pytest.mark.parametrize("case", CASES)
def test_lanes_and_looks_change_nothing(case, look, monkeypatch):
    attack, t, attempts = CASES[case]
    world = images()
    expected = run(*world, t, attack, attempts=attempts)
    monkeypatch.setitem(scheduler.INTERVAL, "cpu", look)
    for slots in (8, 16):
        got = run(*world, t, attack, GraphCache(make=Fixed), attempts=attempts, slots=slots)
        assert same(got, expected), f"{slots} slots"
    order = torch.arange(len(world[1])).flip(0)
    assert same(run(*world, t, attack, GraphCache(make=Fixed), attempts=attempts, order=order), expected)
    assert 0 < int(expected.broken.sum()) < len(world[1]), "the case shows both outcomes"


def test_lanes_join_once_the_queue_is_empty():
    advanced = []

    class Counting(Fixed):
        def advance(self, times=1):
            advanced.append(sum(self.busy))
            super().advance(times)

    x = torch.rand(24, 5, generator=torch.Generator().manual_seed(1))
    net = torch.nn.Linear(5, 6).eval()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.arange(6.0))
    # The last class always wins. Samples labelled 0 are broken at once, the others never.
    y = torch.where(torch.arange(24) % 8 < 6, 0, 5)
    run(wrap(net), x, y, Linf(0.1), PGD(steps=9), GraphCache(make=Counting), slots=24)
    # Three lanes of eight start; after the first look each holds two samples, and every lane that is looked at takes in
    # those before it. Ten answers each: the samples of the first lane are done first.
    assert advanced == [8, 8, 8, 2, 4, *[6] * 7, 4, 2]


def test_lanes_are_used_again():
    made = []

    def make(*args):
        made.append(Fixed(*args))
        return made[-1]

    world, graph_cache = images(), GraphCache(make=make)
    oracle = Oracle(world[0], 8)
    expected = run(*world, Linf(0.05), PGD(steps=4))
    for _ in range(3):
        assert same(run(*world, Linf(0.05), PGD(steps=4), graph_cache, oracle=oracle), expected)
    assert len(made) == 2
    run(*world, Linf(0.05), PGD(steps=5), graph_cache, oracle=oracle)
    assert len(made) == 4
    # Another oracle may be another model, precision or way to compile.
    run(*world, Linf(0.05), PGD(steps=5), graph_cache, oracle=replace(oracle, precision="bfloat16"))
    assert len(made) == 6


def test_what_differs_shares_no_capture():
    made = []

    def make(*args):
        made.append(Fixed(*args))
        return made[-1]

    (classifier, x, y), graph_cache = images(8), GraphCache(make=make)
    oracle, targets = Oracle(classifier, 8), y[:, None]
    usual = {"attack": PGD(steps=3), "criterion": Misclassified(), "threat": Linf(0.05), "draws": 1}

    def attack_all(attack, criterion, threat, draws):
        ball = threat.ball(torch.arange(8), x.device)
        scheduler = partial(concurrent_scheduler, graph_cache)
        engine = Engine(oracle, attack, criterion, ball, (Attempt(),), 8, draws=draws, scheduler=scheduler)
        list(engine.run(Samples.of(x, y, rng.keys(0, torch.arange(8)), ball.eps, targets)))

    others = {"attack": PGD(steps=3, rel_step=0.5), "criterion": Targeted(), "threat": L2(0.05), "draws": 2}
    for changed in ({}, {}, {"threat": Linf(0.1)}, *({k: v} for k, v in others.items())):
        attack_all(**usual | changed)
    assert len(made) == 1 + len(others), "equal ones and other radii share one capture"


def test_a_capture_holds_no_samples():
    (classifier, x, y), graph_cache = images(8), GraphCache(make=Fixed)
    for attack in (PGD(steps=3), Pursuit(steps=4, targets=3, again=1)):
        ball = Linf(0.02).ball(torch.arange(8), x.device)
        scheduler = partial(concurrent_scheduler, graph_cache)
        engine = Engine(Oracle(classifier, 8), attack, Misclassified(), ball, (Attempt(),), 8, scheduler=scheduler)
        samples = Samples.of(x, y, rng.keys(0, torch.arange(8)), ball.eps, torch.full((8, 1), -1))
        held = weakref.ref(samples)
        list(engine.run(samples))
        del samples
        gc.collect()
        assert graph_cache.idle and held() is None


def test_a_block_that_shrinks_on_the_way_leaves_no_capture_of_another_size():
    world = images()
    oracle = Oracle(world[0], 8)
    expected = run(*world, Linf(0.05), PGD(steps=4), block=4)

    def make(*args):
        if oracle.block == 8 and graph_cache.idle:
            oracle.block = 4
        return Fixed(*args)

    graph_cache = GraphCache(make=make)
    graph_cache.idle["other"] = []
    for _ in range(2):
        got = run(*world, Linf(0.05), PGD(steps=4), graph_cache, oracle=oracle)
        assert torch.equal(got.broken, expected.broken) and torch.equal(got.forwards, expected.forwards)
    assert {len(m.busy) for key, idle in graph_cache.idle.items() if idle for m in idle if key[0][1] == 4} == {4}


def test_what_cannot_be_recorded_is_called():
    def refuse(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    notes = []
    world, graph_cache = images(), GraphCache(notes.append, refuse)
    expected = run(*world, Linf(0.05), APGD(steps=9))
    assert same(run(*world, Linf(0.05), APGD(steps=9), graph_cache), expected)
    assert graph_cache.failed and not any(graph_cache.idle.values())
    [note] = [event for event in notes if isinstance(event, Note)]
    assert "cannot capture" in note.text
    assert same(run(*world, Linf(0.05), APGD(steps=9), graph_cache), expected)
    assert [event for event in notes if isinstance(event, Note)] == [note]


def test_samples_may_have_some_of_the_legs_only():
    classifier, x, y = images()
    attempts = tuple(Attempt(r, 0) for r in (2, 3, 4))
    ball, attack = Linf(0.02).ball(torch.arange(len(x)), x.device), APGD(steps=5, loss="minimum-margin")
    targets = torch.stack([(y + 1 + k) % 6 for k in range(3)], 1)

    def records(some, columns, of=None):
        engine = Engine(Oracle(classifier, 8), attack, Misclassified(), ball, some, 16)
        work = Samples.of(x, y, rng.keys(0, torch.arange(len(x))), ball.eps, targets[:, columns], attempts=of)
        parts = list(engine.run(work))
        return take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort())

    odd_rows = torch.arange(len(x)) % 2 == 1
    of = torch.where(odd_rows[:, None], torch.tensor([[1, 3]]), torch.tensor([[2, 3]]))
    got = records(attempts, [0, 1, 2], of)
    for mask, first in ((odd_rows, 1), (~odd_rows, 2)):
        expected = records(attempts[first:], list(range(first, 3)))
        kept = expected.adv_pred >= 0
        expected = replace(expected, attempt=torch.where(kept, expected.attempt + first, expected.attempt))
        index = mask.nonzero()[:, 0]
        assert same(take(got, index), take(expected, index))
        assert 0 < int(expected.broken.sum()) < len(x), "both outcomes are there"


def test_the_garbage_collector_rests_while_something_is_recorded():
    assert gc.isenabled()
    with no_garbage_collection():
        assert not gc.isenabled()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="capture"), no_garbage_collection():
        raise RuntimeError("capture")
    assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_recorded_lanes(case):
    attack, t, attempts = CASES[case]
    classifier, x, y = images()
    device = torch.device("cuda")
    classifier.module.to(device)
    world = (replace(classifier, device=device), x.to(device), y.to(device))
    ball = t.ball(torch.arange(len(x)), device)
    results = []
    for graph_cache in (None, GraphCache(make=CapturedMicroBatch)):
        targets = torch.stack(
            [(world[2] + 1 + k) % 6 if attempts[0].rank else world[2] * 0 - 1 for k in range(len(attempts))], 1
        )
        engine = Engine(
            Oracle(world[0], 8),
            attack,
            Misclassified(),
            ball,
            attempts,
            24,
            scheduler=partial(concurrent_scheduler, graph_cache),
        )
        work = Samples.of(world[1], world[2], rng.keys(0, torch.arange(len(x), device=device)), ball.eps, targets)
        parts = list(engine.run(work))
        results.append(take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort()))
        assert graph_cache is None or not graph_cache.failed
    assert same(*results)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_model_that_counts_on_the_host_is_not_recorded():
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Counting.calls += 1
            return x.flatten(1)[:, :3] * Counting.calls

    x = torch.rand(8, 1, 2, 2, device="cuda")
    y = torch.zeros(8, dtype=torch.long, device="cuda")
    ball = Linf(0.1).ball(torch.arange(8), x.device)
    classifier = replace(wrap(Counting().eval()), device=x.device)
    graph_cache = GraphCache()
    engine = Engine(
        Oracle(classifier, 8), PGD(steps=3), Misclassified(), ball, (Attempt(),), 8,
        scheduler=partial(concurrent_scheduler, graph_cache),
    )  # fmt: skip
    list(engine.run(Samples.of(x, y, rng.keys(0, torch.arange(8, device="cuda")), ball.eps, y[:, None] - 1)))
    assert graph_cache.failed


def test_execution_by_device():
    assert resolve_execution("auto", torch.device("cpu")) == "eager"
    assert resolve_execution("auto", torch.device("cuda")) == "graph"
    assert resolve_execution("graph", torch.device("cuda")) == "graph"
    assert resolve_execution("compile", torch.device("cpu")) == "compile"
    with pytest.raises(brinell.InputError, match="CUDA"):
        resolve_execution("graph", torch.device("cpu"))
    with pytest.raises(brinell.PlanError, match="'eager'"):
        resolve_execution("eagre", torch.device("cpu"))


def test_compiled_runs_are_other_runs(tmp_path, monkeypatch):
    # What is asked for, not what a compiler does: that takes minutes here.
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(f) or f)
    data = brinell.data.load("demo", 8)
    plain, fused = (
        brinell.evaluate("demo", data, Linf(0.1), "fgsm", out=tmp_path / way, execution=way, progress=False)
        for way in ("eager", "compile")
    )
    assert len(asked) == 1  # the network, neither losses nor steps of attacks, and none for the checks
    assert plain.survivors().tolist() == fused.survivors().tolist()
    assert fused.manifest["identity"]["execution"] == "compile"
    assert "execution" not in plain.manifest["identity"]
    with pytest.raises(brinell.RunError, match="execution"):
        brinell.evaluate("demo", data, Linf(0.1), "fgsm", out=tmp_path / "compile", resume=True, progress=False)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("case", ["apgd", "square", "fab"])
def test_compiled_steps_agree_with_called_ones(case):
    attack, t, attempts = CASES[case]
    world = images()
    oracles = (accelerated(Oracle(world[0], 8), torch.device("cpu"), fuse=c) for c in (False, True))
    plain, fused = (run(*world, t, attack, attempts=attempts, slots=8, oracle=o) for o in oracles)
    assert torch.equal(plain.broken, fused.broken)
    assert torch.equal(plain.forwards, fused.forwards)
    torch.testing.assert_close(plain.margin, fused.margin, rtol=0, atol=1e-5)
