"""Lanes of fixed memory, as on a GPU: side by side, reused, joined at the end; none of it changes an outcome."""

import gc
import importlib
from dataclasses import dataclass, replace

import pytest
import torch

import brinell
from brinell.attacks import APGD, FAB, PGD, Pursuit, Square
from brinell.core.attack import Needs
from brinell.core.goal import Misclassify
from brinell.core.threat import L1, L2, Linf
from brinell.engine import looks
from brinell.engine.ahead import Ahead
from brinell.engine.events import Note
from brinell.engine.execution import settle
from brinell.engine.lanes import MismatchError, Recorded, Recordings, undisturbed
from brinell.engine.loop import Engine, Leg, Work
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.rows import clone, concat, overwrite, overwrite_rows, same, take, where

ONE_LEG = (Leg(),)


@dataclass
class Fixed:
    """What `Recorded` does, without a device: the memory stays, and the host knows what was true when it left."""

    slots: object
    busy: list
    iterations: object
    repeats: int = 1

    def __post_init__(self):
        self.slots = clone(self.slots)
        self.ages = [0] * len(self.busy)
        self.flags = None

    def advance(self, times=1):
        for _ in range(times):
            overwrite(self.slots, self.iterations(self.slots))
        self.flags = self.slots.live.tolist()

    def running(self):
        return self.flags

    def read(self, index):
        return take(self.slots, index)

    def outcome(self, index):
        return take(self.slots.outcome, index)

    def write(self, index, new):
        overwrite_rows(self.slots, index, new)

    def shrink(self, block):
        pass


def images(n=21):
    torch_rng = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6)
    ).eval()
    with torch.no_grad():
        for v in net.parameters():
            v.copy_(torch.randn(v.shape, generator=torch_rng) * 0.5)
    x = torch.rand(n, 1, 6, 6, generator=torch_rng)
    with torch.no_grad():
        y = net(x).argmax(1)
    return wrap(net), x, y


def run(
    classifier,
    x,
    y,
    t,
    attack,
    recordings=None,
    *,
    legs=ONE_LEG,
    slots=16,
    block=8,
    order=None,
    oracle=None,
    early_exit=True,
):
    at = torch.arange(len(x)) if order is None else order
    ball = t.ball(at, torch.device("cpu"))
    targets = torch.stack([(y + 1 + k) % 6 if legs[0].rank else torch.full_like(y, -1) for k in range(len(legs))], 1)
    engine = Engine(
        oracle or Oracle(classifier, 8), attack, Misclassify(), lambda e: replace(ball, eps=e), legs, slots,
        early_exit, recordings=recordings,
    )  # fmt: skip
    work = Work(x[at], y[at], rng.keys(0, at), ball.eps, targets[at])
    parts = list(engine.run(work))
    positions = torch.cat([p for p, _ in parts])
    assert sorted(positions.tolist()) == list(range(len(x))), "every sample exactly once"
    return take(concat([r for _, r in parts]), at[positions].argsort())


@dataclass(frozen=True)
class Rolling:
    """Momentum by way of the point before: a state that hands one of its fields on as another."""

    steps: int = 11
    loss = "margin"
    needs = Needs.GRAD
    name = "rolling"
    minimises = False

    @dataclass(frozen=True)
    class State:
        t: torch.Tensor
        x: torch.Tensor
        before: torch.Tensor

    @property
    def queries(self):
        return self.steps + 1

    def init(self, p, ball):
        return self.State(torch.zeros_like(p.y), p.x, p.x)

    def step(self, s, a, p, ball):
        moved = s.x + 0.02 * a.gradient.sign() + 0.75 * (s.x - s.before)
        # The first answer only looks.
        return self.State(s.t + 1, where(s.t > 0, ball.project(p.x, moved), s.x), s.x)


CASES = {
    "rolling": (Rolling(), Linf(0.05), (Leg(), Leg(0, 1))),
    "apgd": (APGD(steps=9), Linf(0.05), (Leg(0, 0), Leg(0, 1))),
    "targets": (APGD(steps=5, loss="minimum-margin"), L2(0.3), tuple(Leg(r, 0) for r in (2, 3, 4))),
    "pgd": (PGD(steps=9), L2(0.3), (Leg(),)),
    "fab": (FAB(steps=6, targeted=True), L2(0.2), tuple(Leg(r, 0) for r in (2, 3))),
    "fab all": (FAB(steps=4), Linf(0.02), (Leg(0, 0), Leg(0, 1))),
    "square": (Square(steps=20), Linf(0.05), (Leg(),)),
    "pursuit": (Pursuit(steps=8, targets=4, again=2), Linf(0.04), (Leg(),)),
    "pursuit L1": (Pursuit(steps=4, targets=3, again=1), L1(1.0), (Leg(),)),
}


@pytest.mark.parametrize("look", [1, 8])
@pytest.mark.parametrize("case", CASES)
def test_lanes_and_looks_change_nothing(case, look, monkeypatch):
    attack, t, legs = CASES[case]
    world = images()
    expected = run(*world, t, attack, legs=legs)
    monkeypatch.setitem(looks.LOOK, "cpu", look)
    for slots in (8, 16):
        got = run(*world, t, attack, Recordings(make=Fixed), legs=legs, slots=slots)
        assert same(got, expected), f"{slots} slots"
    order = torch.arange(len(world[1])).flip(0)
    assert same(run(*world, t, attack, Recordings(make=Fixed), legs=legs, order=order), expected)
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
    run(wrap(net), x, y, Linf(0.1), PGD(steps=9), Recordings(make=Counting), slots=24)
    # Three lanes of eight start; after the first look each holds two samples, and every lane that is looked at takes in
    # those before it. Ten answers each: the samples of the first lane are done first.
    assert advanced == [8, 8, 8, 2, 4, *[6] * 7, 4, 2]


@pytest.mark.parametrize("early_exit", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["apgd", "targets", "fab", "fab all"])
def test_legs_ahead_give_what_legs_one_after_another_give(case, precision, early_exit):
    attack, t, legs = CASES[case]
    world = images()
    oracle = Oracle(world[0], 8, precision=precision)
    args = {"legs": legs, "oracle": oracle, "early_exit": early_exit}
    expected = run(*world, t, attack, **args)
    recordings = Recordings(make=Fixed)
    for slots in (8, 24, 80):
        assert same(run(*world, t, attack, recordings, slots=slots, **args), expected), f"{slots} slots"
    assert 0 < int(expected.broken.sum()) < len(world[1]), "the case shows both outcomes"
    assert early_exit or recordings.vain == 0, "without an early exit everything is needed"
    assert recordings.vain > 0 or not early_exit or case.startswith("fab"), "what is not needed is counted"


class Counting(Fixed):
    """Says how many iterations all lanes have made, each about a whole block."""

    made = 0

    def advance(self, times=1):
        Counting.made += times
        super().advance(times)


@pytest.mark.parametrize(
    ("n", "slots", "calls"), [(8, 8, 50), (4, 8, 30), (1, 8, 10), (12, 16, 80), (1, 1, 50), (1, 2, 30)]
)
def test_empty_slots_take_on_later_legs(n, slots, calls):
    """Five legs of ten iterations, eight rows a call: as few calls as the legs fill, at most `slots` legs at once."""
    classifier, x, y = images(n)
    legs, args = tuple(Leg(0, k) for k in range(5)), (classifier, x, y, Linf(1e-4), PGD(steps=9))
    Counting.made = 0
    got = run(*args, Recordings(make=Counting), legs=legs, slots=slots)
    assert same(got, run(*args, legs=legs)) and not got.broken.any()
    assert Counting.made == calls
    assert got.forwards.tolist() == [50] * n


def test_nothing_is_asked_ahead_where_lanes_can_be_joined():
    """All but one sample of three lanes fall at once: the others go on together, and no lane is kept for later legs."""
    net = torch.nn.Linear(5, 6).eval()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.arange(6.0))
    x = torch.rand(24, 5, generator=torch.Generator().manual_seed(1))
    y = torch.where(torch.arange(24) % 8 < 7, 0, 5)
    legs = tuple(Leg(0, k) for k in range(8))
    Counting.made = 0
    recordings = Recordings(make=Counting)
    got = run(wrap(net), x, y, Linf(0.1), PGD(steps=9), recordings, legs=legs, slots=24)
    assert got.broken.tolist() == (y == 0).tolist()
    # A first look at three lanes, then three samples with eight legs in one: 24 legs of ten iterations in eight slots.
    assert Counting.made <= 3 + 30 + 2


def test_records_that_nobody_wants_are_let_go():
    """A sample that goes on does not keep those it ended a leg with."""
    classifier, x, y = images(16)
    ball = Linf(0.05).ball(torch.arange(16), x.device)
    legs = tuple(Leg(0, k) for k in range(4))
    engine = Engine(
        Oracle(classifier, 8), PGD(steps=3), Misclassify(), lambda e: replace(ball, eps=e), legs, 16,
        recordings=Recordings(make=Fixed),
    )  # fmt: skip
    flight = Ahead(engine, Work(x, y, rng.keys(0, torch.arange(16)), ball.eps, torch.full((16, 4), -1)))
    while flight.lanes:
        lane = flight.lanes.pop(0)
        flight.settle(lane)
        if any(lane.busy):
            flight.advance(lane)
            flight.lanes.append(lane)
        list(flight.collect())
        rows = [r for c in flight.courses.values() for r in (c.so_far, *c.apart.values()) if r is not None]
        held = {id(r.records): len(r.records.forwards) for r in rows}
        assert sum(held.values()) <= len(rows) + 16
    assert not flight.courses


def test_what_was_made_in_vain_is_told(tmp_path, monkeypatch):
    prepare = importlib.import_module("brinell.evaluate.prepare")
    stages = importlib.import_module("brinell.evaluate.stages")
    data, threat = brinell.data.load("demo", 24), Linf(0.15)
    plain = brinell.evaluate("demo", data, threat, "mm3", progress=False)
    # As on a GPU, without one.
    monkeypatch.setattr(stages, "_engine", lambda *a, _make=stages._engine: replace(_make(*a), recordings=made[0]))
    made = [Recordings(make=Fixed)]
    monkeypatch.setattr(prepare, "Setup", lambda *a, **k: stages.Setup(*a, **{**k, "recordings": made[0]}))
    run = brinell.evaluate("demo", data, threat, "mm3", progress=False)
    assert run.survivors().tolist() == plain.survivors().tolist()
    assert run.cost.forwards == plain.cost.forwards
    [note] = [n for n in run.manifest["notes"] if "not needed" in n]
    assert f"Up to {made[0].vain:,} forwards" in note and made[0].vain > 0


def test_lanes_are_used_again():
    made = []

    def make(slots, busy, iterations, repeats):
        made.append(Fixed(slots, busy, iterations, repeats))
        return made[-1]

    world, recordings = images(), Recordings(make=make)
    oracle = Oracle(world[0], 8)
    expected = run(*world, Linf(0.05), PGD(steps=4))
    for _ in range(3):
        assert same(run(*world, Linf(0.05), PGD(steps=4), recordings, oracle=oracle), expected)
    assert len(made) == 2
    run(*world, Linf(0.05), PGD(steps=5), recordings, oracle=oracle)
    assert len(made) == 4
    # Another oracle may be another model, precision or way to compile.
    run(*world, Linf(0.05), PGD(steps=5), recordings, oracle=replace(oracle, precision="bfloat16"))
    assert len(made) == 6
    assert len(recordings.functions) == 3


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), MismatchError()])
def test_what_cannot_be_recorded_is_called(error):
    def refuse(slots, busy, iterations, repeats):
        raise error

    notes = []
    world, recordings = images(), Recordings(notes.append, refuse)
    expected = run(*world, Linf(0.05), APGD(steps=9))
    assert same(run(*world, Linf(0.05), APGD(steps=9), recordings), expected)
    assert recordings.failed and not any(recordings.idle.values())
    before = len(notes)
    assert before >= 1 and all(isinstance(n, Note) and "not recorded" in n.text for n in notes)
    assert same(run(*world, Linf(0.05), APGD(steps=9), recordings), expected)
    assert len(notes) == before


def test_samples_may_have_some_of_the_legs_only():
    classifier, x, y = images()
    legs = tuple(Leg(r, 0) for r in (2, 3, 4))
    ball, attack = Linf(0.02).ball(torch.arange(len(x)), x.device), APGD(steps=5, loss="minimum-margin")
    targets = torch.stack([(y + 1 + k) % 6 for k in range(3)], 1)

    def records(some, columns, of=None):
        engine = Engine(Oracle(classifier, 8), attack, Misclassify(), lambda e: replace(ball, eps=e), some, 16)
        work = Work(x, y, rng.keys(0, torch.arange(len(x))), ball.eps, targets[:, columns], legs=of)
        parts = list(engine.run(work))
        return take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort())

    odd = torch.arange(len(x)) % 2 == 1
    of = torch.where(odd[:, None], torch.tensor([[1, 3]]), torch.tensor([[2, 3]]))
    got = records(legs, [0, 1, 2], of)
    for mask, first in ((odd, 1), (~odd, 2)):
        expected = records(legs[first:], list(range(first, 3)))
        kept = expected.adv_pred >= 0
        expected = replace(expected, leg=torch.where(kept, expected.leg + first, expected.leg))
        index = mask.nonzero()[:, 0]
        assert same(take(got, index), take(expected, index))
        assert 0 < int(expected.broken.sum()) < len(x), "both outcomes are there"


def test_the_garbage_collector_rests_while_something_is_recorded():
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
        with undisturbed():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="capture"), undisturbed():
        raise RuntimeError("capture")
    assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_recorded_lanes(case):
    attack, t, legs = CASES[case]
    classifier, x, y = images()
    device = torch.device("cuda")
    classifier.module.to(device)
    world = (replace(classifier, device=device), x.to(device), y.to(device))
    ball = t.ball(torch.arange(len(x)), device)
    results = []
    for recordings in (None, Recordings(make=Recorded)):
        targets = torch.stack(
            [(world[2] + 1 + k) % 6 if legs[0].rank else world[2] * 0 - 1 for k in range(len(legs))], 1
        )
        engine = Engine(
            Oracle(world[0], 8), attack, Misclassify(), lambda e: replace(ball, eps=e), legs, 24, recordings=recordings
        )
        work = Work(world[1], world[2], rng.keys(0, torch.arange(len(x), device=device)), ball.eps, targets)
        parts = list(engine.run(work))
        results.append(take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort()))
        assert recordings is None or not recordings.failed
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
    recordings = Recordings()
    engine = Engine(
        Oracle(classifier, 8), PGD(steps=3), Misclassify(), lambda e: replace(ball, eps=e), (Leg(),), 8,
        recordings=recordings,
    )  # fmt: skip
    list(engine.run(Work(x, y, rng.keys(0, torch.arange(8, device="cuda")), ball.eps, y[:, None] - 1)))
    assert recordings.failed


def test_execution_by_device():
    assert settle("auto", torch.device("cpu")) == "eager"
    assert settle("auto", torch.device("cuda")) == "graph"
    assert settle("graph", torch.device("cuda")) == "graph"
    assert settle("compile", torch.device("cpu")) == "compile"
    with pytest.raises(brinell.InputError, match="CUDA"):
        settle("graph", torch.device("cpu"))
    with pytest.raises(brinell.PlanError, match="'eager'"):
        settle("eagre", torch.device("cpu"))


def test_compiled_runs_are_other_runs(tmp_path, monkeypatch):
    # What is asked for, not what a compiler does: that takes minutes here.
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(f) or f)
    data = brinell.data.load("demo", 8)
    plain, fused = (
        brinell.evaluate("demo", data, Linf(0.1), "fgsm", out=tmp_path / way, execution=way, progress=False)
        for way in ("eager", "compile")
    )
    assert len(asked) == 3  # the network, the loss and the attack's step, and none for the checks at the door
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
    attack, t, legs = CASES[case]
    world = images()
    oracles = (Oracle(world[0], 8, compiled=c) for c in (False, True))
    plain, fused = (run(*world, t, attack, legs=legs, slots=8, oracle=o) for o in oracles)
    assert torch.equal(plain.broken, fused.broken)
    assert torch.equal(plain.forwards, fused.forwards)
    torch.testing.assert_close(plain.margin, fused.margin, rtol=0, atol=1e-5)
