"""The parts of the probe that have exact answers: who is tried, and what a schedule of slots costs."""

import time

import numpy as np
import pytest
import torch

from brinell import Restarts, Targets
from brinell.attacks import FAB, PGD
from brinell.core.attack import Attempt, Requires
from brinell.core.criterion import Misclassified
from brinell.core.dataset import Chunk
from brinell.core.threat import Linf
from brinell.cost import pilot
from brinell.cost.extrapolate import predict
from brinell.cost.outcomes import RemainingWork
from brinell.cost.pilot import Pace, schedule, spread
from brinell.engine.cuda import scheduler
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.cuda.scheduler import ConcurrentScheduler
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.evaluation import coerce, run_stage
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import clean
from brinell.testing import duel


@pytest.mark.parametrize("n", [1, 2, 5, 31, 64, 100])
@pytest.mark.parametrize("offset", [0.0, 0.37, 0.999])
def test_every_beginning_of_the_order_is_spread_evenly(n: int, offset: float) -> None:
    """Among k of n there is no gap in rank wider than about two k-ths: whatever grows with rank is well averaged."""
    values = np.random.default_rng(n).permutation(100).astype(float)
    chosen = spread(values, n, offset)
    assert len(set(chosen.tolist())) == n
    ranks = np.sort(values[chosen])
    gaps = np.diff(np.concatenate([ranks, ranks[:1] + 100]))
    assert gaps.max() <= 2 * 100 / n + 1
    assert spread(values, n, offset).tolist() == chosen.tolist()


def test_more_than_there_are_means_all() -> None:
    assert sorted(spread(np.array([3.0, 1.0, 2.0]), 10, 0.5).tolist()) == [0, 1, 2]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("slots", "block"), [(1, 1), (3, 1), (3, 4), (8, 4), (20, 4), (20, 8), (64, 8)])
def test_the_schedule_is_that_of_the_engine(slots: int, block: int, attempts: int) -> None:
    """Blocks asked about by the engine itself, counted at the oracle, against the closed form.

    Attempts of one sample at the same time need no more calls than one after another, which is what is counted.
    """
    world = duel(classes=3, n=20)
    asked: list[int] = []

    class Counting(Oracle):
        def query(self, x, *args, **more):  # type: ignore[no-untyped-def]
            asked.append(-(-len(x) // self.block))
            return super().query(x, *args, **more)

    threat = Linf(float(world.distance("Linf").median()))
    ball = threat.ball(torch.zeros(1, dtype=torch.long), world.x.device)
    engine = Engine(
        Counting(world.classifier, block), PGD(12, 0.15), Misclassified(), ball,
        tuple(Attempt(0, k) for k in range(attempts)), slots,
    )  # fmt: skip
    work = Samples.of(world.x, world.y, torch.arange(20), torch.full((20,), float(threat.eps)), torch.full((20, 2), -1))
    answers = np.zeros(20, dtype=np.int64)
    for which, r in engine.run(work):
        answers[which.numpy()] = r.forwards.numpy()
    assert len(set(answers.tolist())) > 2
    # Slots are rounded up to whole blocks only in what the model is asked about.
    calls, blocks = schedule(answers, slots, block)
    if attempts == 1:
        assert (calls, blocks) == (len(asked), sum(asked))
    else:
        assert 0.25 * calls <= len(asked) <= calls


def test_nothing_to_do_takes_no_time() -> None:
    assert schedule(np.zeros(0, dtype=np.int64), 8, 4) == (0.0, 0.0)
    assert Pace(0.5, 2.0).seconds(3.0, 10.0) == 21.5


def test_recorded_iterations_take_the_time_of_their_model_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose samples never break, three lanes of eight: the seconds follow from the schedule alone."""
    world, seconds = duel(classes=3, n=20), {Requires.GRAD: 0.5, Requires.LOGITS: 0.25}
    asked: list[tuple[int, Requires, int]] = []

    def replayed(oracle: Oracle, shape: tuple[int, ...], requires: Requires, lanes: int) -> float:
        asked.append((oracle.block, requires, lanes))
        return seconds[requires]

    monkeypatch.setattr(pilot, "replayed_seconds", replayed)
    context = StageContext(Oracle(world.classifier, 8), Linf(1e-6), seed=0, slots=24, graph_cache=GraphCache())
    plan = coerce.as_plan([PGD(steps=7), Targets(FAB(steps=6, targeted=True), k=2)])
    first = Chunk(torch.arange(20), world.x, world.y)
    facts = clean(first, [context.oracle.output(world.x)])
    told = predict(RemainingWork(context, plan, facts, rest=0.0, pace=1e-6), 2.0, time.perf_counter)
    assert sorted(asked, key=str) == [(8, Requires.GRAD, 3), (8, Requires.GRAD, 3), (8, Requires.LOGITS, 3)]
    for stage, part, each in zip(plan.stages, told.stages[1:], (0.5, 0.375), strict=True):
        answers = part.forwards // part.samples
        assert answers == stage.attack.queries * len(stage.attempts())
        # Three lanes of eight for twenty samples; four empty slots run the second leg of some.
        blocks = 3 * answers if len(stage.attempts()) == 1 else 20 * answers / 8
        # Beside the attack: verification and storing, both in milliseconds.
        assert part.seconds == pytest.approx(pilot.STEP * each * blocks, abs=0.2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("each", [PGD(1), PGD(10), PGD(20), PGD(50)], ids=lambda a: f"{a.steps} steps")
def test_looks_of_any_length_are_counted_by_their_iterations(each: PGD, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host looks seldom, a look comes sooner where budgets end: a clock of one second per iteration shows."""
    monkeypatch.setitem(scheduler.INTERVAL, "cpu", 10)
    monkeypatch.setattr(run_stage, "scheduler_for", lambda *_: ConcurrentScheduler)
    world, calls = duel(classes=3, n=20), [0]

    class Counting(Oracle):
        def query(self, *args, **more):  # type: ignore[no-untyped-def]
            calls[0] += 1
            return super().query(*args, **more)

    oracle = Counting(world.classifier, 32)
    context = StageContext(oracle, Linf(1e-6), seed=0, slots=32)
    c = clean(Chunk(torch.arange(20), world.x, world.y), [oracle.output(world.x)])
    stage, everyone = coerce.as_plan([Restarts(each, 40)]).stages[0], np.arange(20)
    assert pilot._seconds(context, stage, c, everyone, 1e9, lambda: float(calls[0])) == pytest.approx(1.0)
    calls[0] = 0
    trial = pilot._stage(
        context, stage, c, everyone, np.ones(20, bool), 50.0, lambda: float(calls[0]), everyone, Pace(0.0, 1.0)
    )
    # What is under way at the deadline is not looked at any more.
    assert calls[0] - 10 <= trial.answers.min() <= trial.answers.max() <= calls[0]
    assert trial.pace is not None and trial.pace.block == pytest.approx(1.0, rel=0.2)
