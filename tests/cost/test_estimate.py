"""Passes foretold against passes made: exact where they can be, within the promised factor elsewhere."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import brinell
from brinell import Linf, Plan, Restarts, Run, Stage, Targets, evaluate
from brinell.attacks import APGD, FGSM, PGD, Pursuit, Square
from brinell.cost.budget import Estimate, duration, rounded
from brinell.evaluation import run_stage
from brinell.results import Writer
from brinell.testing import LinearWorld

pytestmark = pytest.mark.usefixtures("unchecked")
Tell = Callable[..., Estimate]
FACTOR = 1.5

PLANS: dict[str, Any] = {
    "fgsm": "fgsm",
    "pgd20": "pgd20",
    "restarts": Restarts(PGD(6, 0.2), 3),
    "targets": [Targets(APGD(8, "minimum-margin"), k=2, ranked_by=FGSM())],
    "two stages": [PGD(3, 0.1), APGD(10, "margin")],
    "square": Square(steps=60),
    "pursuit": Pursuit(),
    "audited": Plan(
        "mine", (Stage(PGD(4, 0.2)), Stage(APGD(12, "margin"), share=0.3)), strength="audited"
    ),
}  # fmt: skip


def within(told: float, true: float, factor: float = FACTOR) -> bool:
    return true / factor <= told <= factor * true


def passes(run: Run) -> tuple[int, int]:
    return run.cost.forwards, run.cost.backwards


@pytest.mark.parametrize("name", PLANS)
def test_passes_in_a_linear_world(name: str, world: LinearWorld, eps: float, foretold: Tell) -> None:
    plan, data = PLANS[name], (world.x, world.y)
    if name == "square":
        data = (world.x.view(len(world.x), 1, 1, -1), world.y)
    model: Any = world.classifier if name != "square" else nn.Sequential(nn.Flatten(), world.classifier.module).eval()
    told = foretold(model, data, Linf(eps), plan)
    run = evaluate(model, data, Linf(eps), plan, progress=False, escalate=False)
    forwards, backwards = passes(run)
    assert within(told.forwards, forwards), (told.forwards, forwards)
    assert backwards == told.backwards == 0 or within(told.backwards, backwards)
    assert told.low <= 1 <= told.high
    assert told.stages[0].forwards == len(world.y)
    assert [s.stage for s in told.stages] == ["clean", *run.attacks]


def test_all_samples_probed_to_the_end_is_exact(world: LinearWorld, eps: float, foretold: Tell) -> None:
    """A pilot that is the whole evaluation foretells it to the pass, stage by stage, and says so."""
    data, plan = (world.x[:40], world.y[:40]), [PGD(6, 0.2), APGD(8, "margin")]
    told = foretold(world.classifier, data, Linf(eps), plan, step=1e-4)
    run = evaluate(world.classifier, data, Linf(eps), plan, progress=False)
    assert (told.forwards, told.backwards) == passes(run)
    assert [s.samples for s in told.stages[1:]] == [s.attacked for s in run.stages()]
    assert told.low == told.high == 1.0


@pytest.mark.parametrize("step", [0.004, 0.05, 0.2])
def test_samples_that_never_break_take_their_whole_budget(world: LinearWorld, step: float, foretold: Tell) -> None:
    """Exact however short the probe was: budgets are known."""
    plan = [PGD(30), Targets(APGD(20, "minimum-margin"), k=1), APGD(11, "margin")]
    tiny = Linf(float(world.distance("Linf").min()) / 100)
    told = foretold(world.classifier, (world.x, world.y), tiny, plan, step=step)
    n = len(world.y)
    assert [s.forwards for s in told.stages] == [n, 31 * n, 21 * n, 12 * n]


def test_the_whole_budget_where_there_is_no_time_at_all(world: LinearWorld, eps: float, foretold: Tell) -> None:
    told = foretold(world.classifier, (world.x, world.y), Linf(eps), PGD(30), step=10.0)
    assert told.forwards == 32 * len(world.y)


@pytest.mark.parametrize(
    ("plan", "n", "threat"),
    [("pgd20", 100, Linf(0.1)), ("mm3", 100, Linf(0.25)), (APGD(10), 64, brinell.L2(1.5))],
)
def test_passes_on_the_demo(plan: Any, n: int, threat: brinell.Threat, foretold: Tell) -> None:
    data = brinell.data.load("demo", n)
    told = foretold("demo", data, threat, plan)
    forwards, backwards = passes(evaluate("demo", data, threat, plan, progress=False))
    assert within(told.forwards, forwards)
    assert within(told.backwards, backwards)


def test_every_attack_on_every_sample(world: LinearWorld, eps: float, foretold: Tell) -> None:
    plan, data = [PGD(8, 0.2), APGD(8, "margin")], (world.x, world.y)
    told = foretold(world.classifier, data, Linf(eps), plan, individual=True)
    run = evaluate(world.classifier, data, Linf(eps), plan, individual=True, progress=False)
    assert [s.samples for s in told.stages[1:]] == [s.attacked for s in run.stages()]
    assert within(told.forwards, run.cost.forwards)


def test_streams_and_chunks(world: LinearWorld, eps: float, foretold: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk stands for the others."""
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", 64)
    data = TensorDataset(world.x, world.y)
    told = foretold(world.classifier, data, Linf(eps), "pgd20")
    run = evaluate(world.classifier, data, Linf(eps), "pgd20", progress=False)
    assert told.samples == len(world.y)
    assert told.stages[0].forwards == len(world.y)
    assert within(told.forwards, run.cost.forwards)


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("chunk", [16384, 100])
def test_resuming_counts_only_what_is_left(
    chunk: int, world: LinearWorld, eps: float, foretold: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, data = [PGD(8, 0.2), APGD(8, "margin")], (world.x, world.y)
    whole = evaluate(world.classifier, data, Linf(eps), plan, progress=False)
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", chunk)
    monkeypatch.setattr(run_stage, "BATCH", 50)
    append, left = Writer.append, [4]

    def failing(self: Writer, *args: Any) -> None:
        if not left[0]:
            raise Interrupted
        left[0] -= 1
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "append", failing)
        with pytest.raises(Interrupted):
            evaluate(world.classifier, data, Linf(eps), plan, out=tmp_path / "r", progress=False)
    torn = Run.open(tmp_path / "r")
    rest = whole.cost.forwards - torn.cost.forwards
    assert 0 < rest < whole.cost.forwards
    told = foretold(world.classifier, data, Linf(eps), plan, folder=tmp_path / "r")
    assert within(told.forwards, rest), (told.forwards, rest)
    evaluate(world.classifier, data, Linf(eps), plan, out=tmp_path / "r", resume=True, progress=False)
    done = foretold(world.classifier, data, Linf(eps), plan, folder=tmp_path / "r")
    assert done.forwards == done.backwards == done.samples == 0


def test_escalation_is_foreseen_where_the_audit_is_too_small(world: LinearWorld, eps: float, foretold: Tell) -> None:
    data = (world.x[:100], world.y[:100])
    run = evaluate(world.classifier, data, Linf(eps), PLANS["audited"], escalate=True, progress=False)
    assert run.audit is not None and run.audit.complete
    told = foretold(world.classifier, data, Linf(eps), PLANS["audited"], escalate=True)
    assert within(told.forwards, run.cost.forwards)
    assert "too small" in told.notes[0]


class Noisy(nn.Module):
    """A model that draws from the global generator at every pass."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.02 * torch.randn_like(x))


def test_randomised_models_take_their_whole_budget(world: LinearWorld, foretold: Tell) -> None:
    plan = Plan("rand", (brinell.Eot(PGD(5), 3), brinell.Eot(APGD(4), 2)), draws=3)
    noisy = Noisy(world.classifier.module).eval()
    tiny = Linf(1e-4)
    told = foretold(noisy, (world.x, world.y), tiny, plan)
    run = evaluate(noisy, (world.x, world.y), tiny, plan, progress=False)
    assert within(told.forwards, run.cost.forwards, 1.1)
    assert told.stages[1].forwards == told.stages[1].samples * 6 * 3


def test_the_estimate_changes_nothing(world: LinearWorld, eps: float, foretold: Tell, monkeypatch: Any) -> None:
    """Rows with and without it are the same, even of a model that draws from torch's global generator."""
    noisy = Noisy(world.classifier.module).eval()

    def rows(**more: Any) -> list[Any]:
        torch.manual_seed(5)
        run = evaluate(noisy, (world.x[:50], world.y[:50]), Linf(eps), PGD(6), **more)
        return run.rows().drop_columns(["seconds", "adv_shard"]).to_pylist()

    silent = rows(progress=False)
    told: list[float] = []
    module = sys.modules["brinell.cost.estimate"]
    predict = module.predict  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "MIN_ANNOUNCED", 0.0)
    monkeypatch.setattr(module, "predict", lambda a: told.append(1.0) or predict(a, 0.2))
    assert rows(progress=None) == silent
    assert told == [1.0]


def test_the_start_of_a_run_says_what_it_will_cost(
    world: LinearWorld, eps: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules["brinell.cost.estimate"], "MIN_ANNOUNCED", 0.0)
    data = (world.x[:40], world.y[:40])
    evaluate(world.classifier, data, Linf(eps), "fgsm", out=tmp_path / "run")
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("expected: about") and "forwards" in first and "a pilot of" in first
    evaluate(world.classifier, data, Linf(eps), "fgsm", out=tmp_path / "run", resume=True)
    assert "expected:" not in capsys.readouterr().err  # nothing is left to do
    evaluate(world.classifier, (world.x[:40], world.y[:40]), Linf(eps), "fgsm", progress=False)
    assert capsys.readouterr().err == ""


def test_everyone_misclassified(world: LinearWorld, foretold: Tell) -> None:
    told = foretold(world.classifier, (world.x, (world.y + 1) % 2), Linf(0.1), "pgd20")
    assert (told.forwards, told.backwards) == (len(world.y), 0)


def test_json_is_json() -> None:
    told = brinell.estimate("demo", brinell.data.load("demo", 16), Linf(0.1), "fgsm", seconds=0.1)
    read = json.loads(json.dumps(told.to_json()))
    assert read["forwards"] == told.forwards
    assert [s["stage"] for s in read["stages"]] == ["clean", "fgsm-ce"]
    assert str(told) == read["sentence"]


def test_numbers_as_people_say_them() -> None:
    assert [rounded(v) for v in (0, 7, 999, 1234, 98765)] == ["0", "7", "999", "1,230", "98,800"]
    assert [duration(v) for v in (0.04, 9.96, 61, 5399, 36000)] == ["0.0 s", "10.0 s", "1 min", "90 min", "10.0 h"]


def test_the_execution_is_the_one_of_the_run() -> None:
    """What evaluate would refuse here, its estimate refuses too."""
    with pytest.raises(brinell.InputError, match="CUDA device"):
        brinell.estimate("demo", brinell.data.load("demo", n=8), Linf(0.1), "fgsm", execution="graph")
