"""The driver with fake workers: the same rows whatever they do, nothing stored twice, nothing lost."""

import importlib
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import brinell
from brinell import Linf, Problem, Run, RunError, wrap
from brinell.core.dataset import Chunk
from brinell.distributed import driver as drive
from brinell.distributed.driver import Driver, WorkerDied, WorkerEvent, WorkerFinished, WorkerJoined, WorkerReported
from brinell.distributed.worker import Worker, WorkerReport
from brinell.engine.events import Phase, Progress, StageStarted, silent
from brinell.evaluation import run_stage as stages
from brinell.evaluation.backend import AttackJob, WorkUnit
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import FinishedRows

# The module, not the function of the same name.
module: Any = importlib.import_module("brinell.evaluation.evaluate")
pytestmark = pytest.mark.usefixtures("unchecked", "small_parts")
Evaluate = Callable[..., Run]
Same = Callable[[Run, Run], None]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts instead of few, so that there are many moments for something to happen between them."""
    monkeypatch.setattr(stages, "BATCH", 8)


@dataclass
class FakeLauncher:
    """A launcher whose workers run in this process and act in a random order; `death` is how often one dies."""

    workers: int = 2
    unit: int | None = None
    seed: int = 0
    death: float = 0.0
    stalled: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    crash: bool = False
    version: str | None = None
    device: torch.device | None = None
    seen: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    deaths: int = 0

    @contextmanager
    def open(self, context: StageContext, plan: Any) -> Iterator["FakeLauncher"]:
        quiet = replace(context, oracle=replace(context.oracle, listener=silent), listener=silent)
        self.pool = FakePool(self, pickle.dumps((quiet, plan)))
        yield self

    def run(self, job: AttackJob) -> Iterator[FinishedRows]:
        return Driver(job, self.pool, self.unit, clock=self.pool.clock).run()


class FakePool:
    def __init__(self, launcher: FakeLauncher, packed: bytes) -> None:
        self.launcher, self.packed, self.count = launcher, packed, launcher.workers
        self.rng, self.now = random.Random(launcher.seed), 0.0
        self.numbers = dict.fromkeys(range(launcher.workers), 0)
        self.workers: dict[int, Worker] = {}
        self.ready: set[int] = set()
        self.busy: dict[int, Iterator[WorkerReport]] = {}
        for w in range(self.count):
            self.start(w)

    def clock(self) -> float:
        return self.now

    def start(self, worker: int) -> None:
        self.workers[worker] = Worker(self.packed, None, torch.get_num_threads())
        self.ready.discard(worker)
        self.busy.pop(worker, None)

    def free(self) -> list[int]:
        for w in list(self.busy):
            self.start(w)
        return sorted(self.ready)

    def assign(self, worker: int, unit: WorkUnit) -> None:
        self.launcher.seen.append(len(unit.chunk))
        self.numbers[worker] += 1
        self.busy[worker] = self.workers[worker].work(unit, self.numbers[worker])

    def drop(self, worker: int, ids: list[int]) -> None:
        self.launcher.dropped += ids
        self.workers[worker].drop(self.numbers[worker], ids)

    def poll(self, seconds: float) -> list[WorkerEvent]:
        self.now += seconds
        new = [w for w in self.workers if w not in self.ready and w not in self.busy]
        if new:
            environment = self.workers[new[0]].build_model()
            self.ready.add(new[0])
            return [
                WorkerJoined(
                    new[0], {**environment, **({"brinell": self.launcher.version} if self.launcher.version else {})}
                )
            ]
        awake = [w for w in self.busy if w not in self.launcher.stalled]
        if self.rng.random() < 0.9:
            awake = [w for w in awake if w not in self.launcher.slow]
        if not awake:
            return []
        worker = self.rng.choice(awake)
        if self.launcher.crash or self.rng.random() < self.launcher.death:
            self.launcher.deaths += 1
            del self.busy[worker]
            return [WorkerDied(worker, "killed")]
        try:
            return [WorkerReported(worker, next(self.busy[worker]))]
        except StopIteration:
            del self.busy[worker]
            return [WorkerFinished(worker)]


def test_one_two_or_five_workers_and_any_units_give_the_same_run(evaluate: Evaluate, assert_same: Same) -> None:
    plan = brinell.attacks.PGD(steps=4)
    reference = evaluate(50, plan)
    for launcher in (FakeLauncher(1), FakeLauncher(2), FakeLauncher(5, unit=7), FakeLauncher(2, unit=33, seed=1)):
        assert_same(evaluate(50, plan, launch=launcher), reference)
        assert max(launcher.seen) <= (launcher.unit or 50)
    assert_same(evaluate(8, plan, launch=FakeLauncher(3, unit=1, seed=2)), evaluate(8, plan))


def test_several_stages_and_deaths(evaluate: Evaluate, assert_same: Same) -> None:
    plan = [
        brinell.attacks.FGSM(),
        brinell.attacks.PGD(steps=3),
        brinell.Targets(brinell.attacks.APGD(4, "dlr-targeted"), 2),
    ]
    reference = evaluate(64, plan)
    deaths = 0
    for seed in range(4):
        launcher = FakeLauncher(3, unit=20, seed=seed, death=0.15)
        assert_same(evaluate(64, plan, launch=launcher), reference)
        deaths += launcher.deaths
    assert deaths > 5


def test_a_stalled_worker_is_overtaken(evaluate: Evaluate, assert_same: Same) -> None:
    plan = [brinell.attacks.FGSM(), brinell.attacks.PGD(steps=3)]
    reference = evaluate(100, plan)
    launcher = FakeLauncher(2, unit=50, stalled=(0,))
    assert_same(evaluate(100, plan, launch=launcher), reference)
    assert sum(launcher.seen) > 100  # what the stalled one had was handed out again


def test_a_slow_worker_is_told_what_others_took(evaluate: Evaluate, assert_same: Same) -> None:
    plan = [brinell.attacks.FGSM(), brinell.attacks.PGD(steps=3)]
    reference = evaluate(192, plan)
    launcher = FakeLauncher(2, unit=96, seed=3, slow=(0,))
    assert_same(evaluate(192, plan, launch=launcher), reference)
    assert set(launcher.dropped) <= set(range(192))
    assert launcher.dropped


@pytest.mark.parametrize("individual", [False, True])
def test_odd_ids_own_radii_and_masks(evaluate: Evaluate, assert_same: Same, data: Any, individual: bool) -> None:
    data = data(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    problem = Problem(data.x, data.y, ids=order * 7919 - 31)
    threat = Linf(torch.linspace(0.005, 0.08, 60), mask=torch.arange(48).view(3, 4, 4) % 5 > 0)
    plan = [brinell.attacks.FGSM(), brinell.attacks.PGD(steps=3)]
    same: dict[str, Any] = {"problem": problem, "threat": threat, "plan": plan, "individual": individual}
    assert_same(evaluate(**same, launch=FakeLauncher(3, unit=11, death=0.1)), evaluate(**same))


def test_streams(evaluate: Evaluate, assert_same: Same, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", 32)
    data = data(75)
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=10)
    reference = evaluate(problem=Problem(data.x, data.y))
    run = evaluate(problem=Problem(loader), launch=FakeLauncher(2, unit=13))
    assert_same(run, reference)


def test_audit_and_escalation(evaluate: Evaluate, assert_same: Same, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "needed_reach", lambda run, warned, escalate: (float("inf") if escalate else 0.0, ""))
    short = brinell.Stage(brinell.attacks.FGSM())
    full = brinell.Stage(brinell.attacks.PGD(steps=5), share=0.25)
    plan = brinell.Plan("mine", (short, full), strength="audited")
    reference = evaluate(64, plan, audit=0.3)
    assert_same(evaluate(64, plan, audit=0.3, launch=FakeLauncher(2, unit=9)), reference)
    everyone = evaluate(64, plan, audit=0.3, escalate=True)
    assert everyone.rows().num_rows > reference.rows().num_rows
    assert_same(evaluate(64, plan, audit=0.3, escalate=True, launch=FakeLauncher(2, unit=9)), everyone)


def test_who_is_near_the_boundary(evaluate: Evaluate, assert_same: Same, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers know what others left of a sample's margin, also when a sample moves from one to another."""
    monkeypatch.setattr(module, "needed_reach", lambda *_: (0.8, ""))
    full = brinell.Stage(brinell.attacks.PGD(steps=5), share=1e-6, near=0.5)
    plan = brinell.Plan("mine", (brinell.Stage(brinell.attacks.FGSM()), full), strength="audited")
    reference = evaluate(64, plan)
    attacks = reference.rows()["attack"].to_pylist()
    assert 0 < attacks.count("pgd-ce") < attacks.count("fgsm-ce")
    for seed in range(3):
        assert_same(evaluate(64, plan, launch=FakeLauncher(3, unit=5, death=0.2, seed=seed)), reference)


def test_lower_precision(evaluate: Evaluate, assert_same: Same) -> None:
    reference = evaluate(40, precision="bfloat16")
    assert_same(evaluate(40, precision="bfloat16", launch=FakeLauncher(2, unit=9)), reference)


class StopError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_driver_that_stops_is_resumed_by_anybody(
    evaluate: Evaluate, assert_same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    reference, append, count = evaluate(40), brinell.results.Writer.append, 0

    def fragile(self: Any, *args: Any) -> None:
        nonlocal count
        count += 1
        if count > after:
            raise StopError
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(brinell.results.Writer, "append", fragile)
        with pytest.raises(StopError):
            evaluate(40, out=tmp_path / "r", launch=FakeLauncher(2, unit=16))
    left = Run.open(tmp_path / "r")
    assert not left.finished
    launcher = FakeLauncher(3, unit=5)
    assert_same(evaluate(40, out=tmp_path / "r", resume=True, launch=launcher), reference)
    assert evaluate(40, out=tmp_path / "r", resume=True).rows().num_rows == reference.rows().num_rows
    idle = FakeLauncher(2)
    evaluate(40, out=tmp_path / "r", resume=True, launch=idle)
    assert idle.seen == []


def test_other_data_under_the_same_ids_are_noticed(evaluate: Evaluate) -> None:
    from brinell.distributed.sample_ledger import SampleLedger
    from brinell.results.format.resume import StoredOutcomes

    chunk = Chunk(torch.tensor([5]), torch.zeros(1, 3), torch.tensor([0]))
    job: Any = type("J", (), {"read": lambda self: iter([(chunk, StoredOutcomes({}, {5: "other"}))])})()
    with pytest.raises(RunError, match="another input"):
        next(SampleLedger(job).samples())


def test_workers_that_only_die_are_given_up(evaluate: Evaluate) -> None:
    with pytest.raises(RunError, match="3 crashes in a row of every worker without a result"):
        evaluate(20, launch=FakeLauncher(2, crash=True))


def test_another_version_is_refused(evaluate: Evaluate) -> None:
    with pytest.raises(RunError, match="on every worker"):
        evaluate(20, launch=FakeLauncher(2, version="0.0.0"))


def test_the_listener_hears_of_every_sample(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    @contextmanager
    def listening(_: Any) -> Iterator[Any]:
        yield heard.append

    monkeypatch.setattr(module, "show_progress", listening)
    run = evaluate(40, launch=FakeLauncher(2, unit=9, death=0.1))
    assert next(e for e in heard if not isinstance(e, Phase)) == StageStarted("pgd20", 40, 21)
    told = [e for e in heard if isinstance(e, Progress)]
    assert told[-1].finished == 40
    assert [e.finished for e in told] == sorted(e.finished for e in told)
    assert told[-1].broken == len(run.adversarials().ids)
    assert told[-1].forwards == sum(run.rows()["forwards"].to_pylist())


def test_where_the_work_was_done_is_stored(evaluate: Evaluate) -> None:
    workers = evaluate(20, launch=FakeLauncher(3)).manifest["workers"]
    assert len(workers) == 1  # equal ones once
    assert workers[0]["threads"] == torch.get_num_threads()
    assert "workers" not in evaluate(20).manifest


def test_a_worker_that_cannot_build_the_model_says_so() -> None:
    with pytest.raises(brinell.ModelError, match="every worker can build"):
        Worker(b"nonsense", None, 1).build_model()


def test_waiting_for_workers_is_told_once() -> None:
    heard: list[Any] = []

    class Nobody:
        count = 1
        now = 0.0

        def free(self) -> list[int]:
            return []

        def poll(self, seconds: float) -> list[WorkerEvent]:
            self.now += 50
            if self.now > 400:
                raise StopError
            return []

        assign = drop = start = free

    def read() -> Iterator[Any]:
        yield (
            Chunk(torch.tensor([0]), torch.zeros(1, 3), torch.tensor([0])),
            brinell.results.format.resume.NOTHING_STORED,
        )

    oracle = brinell.engine.oracle.Oracle(wrap(nn.Linear(3, 2).eval()), 32)
    context = StageContext(oracle, Linf(0.1), 0, 32)
    job = AttackJob(context, brinell.plan([brinell.attacks.FGSM()]), read, lambda c: c, 1, (3,), listener=heard.append)
    nobody = Nobody()
    with pytest.raises(StopError):
        list(Driver(job, nobody, clock=lambda: nobody.now).run())
    assert sum(isinstance(e, drive.Note) for e in heard) == 1
