"""What a GPU computes with: chosen from what can be counted, so that the evaluation ends soonest."""

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell import L1, Linf
from brinell.attacks.catalogue import by_name
from brinell.core.execution import Blocks
from brinell.cost.model_cost import ModelCost, model_cost
from brinell.cost.precision import PrecisionChoice, PrecisionTrial
from brinell.cost.settings import (
    TRIAL,
    Device,
    GpuSettings,
    Workload,
    choose_blocks,
    choose_settings,
    compiled_blocks,
    rows_of,
)
from brinell.engine.cuda.oracle import AcceleratedOracle
from brinell.engine.events import Note
from brinell.engine.oracle import default_blocks
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.models.wrap import wrap

preparing: Any = sys.modules["brinell.evaluation.prepare"]
# A ResNet-18 on CIFAR-10, a ResNet-50 and a ViT-B/16 at 224 x 224: operations and bytes kept per input, layers.
SMALL, LARGE, VIT = ModelCost(1.11e9, 4.5e6, 38), ModelCost(8.18e9, 8.6e7, 153), ModelCost(35.1e9, 1.2e8, 87)
H200 = Device(139e9)


def work(n: int = 1000, cost: ModelCost = SMALL, plan: str = "autoattack", **more: Any) -> Workload:
    threat = more.pop("threat", Linf(8 / 255))
    return Workload(n, by_name(plan).stages_for(threat), threat, cost, more.pop("device", H200), **more)


def found(bfloat16: int) -> PrecisionChoice:
    trials = tuple(PrecisionTrial(p, 0.1, k, 9) for p, k in (("float32", 9), ("tf32", 9), ("bfloat16", bfloat16)))
    return PrecisionChoice("bfloat16" if bfloat16 == 9 else "tf32", trials)


def never(seconds: float) -> PrecisionChoice:
    raise AssertionError("no trial is due")


def choose(w: Workload, precision: str = "auto", mode: str = "auto", trial: Any = never) -> GpuSettings:
    return choose_settings(w, choose_blocks(w.n, w.cost, w.device.memory), precision, mode, trial)


def test_the_usual_sizes_are_those_for_a_thousand_small_images() -> None:
    assert choose_blocks(1000, SMALL, H200.memory).to_json() == default_blocks(torch.device("cuda")).to_json()
    assert choose_blocks(1000, ModelCost()) == default_blocks(torch.device("cuda"))


@pytest.mark.parametrize(
    ("n", "cost", "rows"),
    [(128, SMALL, 64), (10_000, SMALL, 512), (128, LARGE, 32), (1000, LARGE, 64), (128, VIT, 16), (1000, VIT, 32)],
)
def test_rows_of_a_call_follow_samples_and_cost(n: int, cost: ModelCost, rows: int) -> None:
    assert choose_blocks(n, cost, H200.memory).usual == rows


def test_few_samples_do_not_leave_calls_empty() -> None:
    for cost in (SMALL, LARGE, VIT):
        for n in (32, 128, 1000, 10_000):
            rows = choose_blocks(n, cost, H200.memory).usual
            assert rows <= n


@pytest.mark.parametrize("memory", [8e9, 24e9, 139e9])
def test_several_calls_fit_into_memory(memory: float) -> None:
    for cost in (SMALL, LARGE, VIT):
        blocks = choose_blocks(10_000, cost, memory)
        for kind in ("", "legs", "claims"):
            assert 4 * blocks.of(kind) * float(cost.memory or 0) <= memory / 2 or blocks.of(kind) == 1


def test_a_short_run_is_tf32_without_a_trial() -> None:
    for plan in ("pgd20", "fgsm", "apgd-ce"):
        settings = choose(work(plan=plan))
        assert (settings.precision, settings.compiled, settings.trial) == ("tf32", False, None)
        assert settings.why.startswith("Precision tf32, not compiled:") and "too short" in settings.why


def test_a_model_of_unknown_cost_is_tf32_without_a_trial() -> None:
    settings = choose(work(cost=ModelCost()))
    assert (settings.precision, settings.compiled) == ("tf32", False) and "not known" in settings.why


def test_a_longer_run_is_tried_for_a_twentieth_of_its_time() -> None:
    asked: list[float] = []

    def trial(seconds: float) -> PrecisionChoice:
        asked.append(seconds)
        return found(9)

    w = work()
    settings = choose(w, trial=trial)
    assert (settings.precision, settings.trial) == ("bfloat16", found(9))
    assert asked == [TRIAL * w.seconds()]
    assert "9 of 9" in settings.why and "soonest" in settings.why
    assert choose(w, trial=lambda _: found(8)).precision == "tf32"
    assert choose(w, trial=lambda _: PrecisionChoice("tf32", ())).precision == "tf32"
    assert choose(w, trial=lambda _: PrecisionChoice("float32", found(9).trials)).precision == "float32"


def test_compiling_pays_where_it_saves_more_than_it_takes() -> None:
    """For 1,000 images once the kernels are there, for 10,000 also the first time."""
    everything = lambda precision, rows: "known"  # noqa: E731
    once, again = work(), work(kernel=everything, known=["known"])
    many = work(10_000)
    results = [choose(w, trial=lambda _: found(9)) for w in (once, again, many)]
    assert [r.compiled for r in results] == [False, True, True]
    for w, r in zip((once, again, many), results, strict=True):
        for precision in ("tf32", "bfloat16"):
            plain, compiled = w.seconds(precision), w.seconds(precision, True) + w.startup(precision, r.blocks)
            took = w.seconds(r.precision, r.compiled) + (w.startup(r.precision, r.blocks) if r.compiled else 0)
            assert took <= min(plain, compiled)


def test_what_is_asked_for_stays() -> None:
    w = work(10_000)
    for precision in ("float32", "tf32", "bfloat16"):
        for mode in ("eager", "graph", "compile"):
            settings = choose(w, precision, mode)
            assert (settings.precision, settings.compiled, settings.why) == (precision, mode == "compile", "")
    assert choose(w, "float32").compiled is False
    assert choose(w, "auto", "compile", lambda _: found(9)).compiled


def test_nothing_chosen_is_slower_than_tf32() -> None:
    for plan in ("fast", "pgd20", "autoattack", "mm5"):
        for n in (10, 1000, 100_000):
            w = work(n, plan=plan)
            settings = choose(w, trial=lambda _: found(9))
            start = w.startup(settings.precision, settings.blocks) if settings.compiled else 0.0
            assert w.seconds(settings.precision, settings.compiled) + start <= w.seconds("tf32")


def test_older_gpus_have_float32_only() -> None:
    settings = choose(work(device=Device(16e9, 80, lower=False, compiles=False)))
    assert (settings.precision, settings.compiled) == ("float32", False)


def test_one_size_is_compiled() -> None:
    blocks = compiled_blocks(default_blocks(torch.device("cuda")))
    stages = by_name("autoattack").stages_for(Linf(0.1))
    assert {rows_of(s, blocks) for s in stages} == {256}


def test_attacks_that_stay_in_float32_do_not_get_faster() -> None:
    w = work(threat=L1(12), plan="autoattack")
    gained = w.seconds("tf32") / w.seconds("bfloat16")
    assert 1 <= gained < work().seconds("tf32") / work().seconds("bfloat16")


def test_settings_of_a_run() -> None:
    stored = {"precision": "tf32", "execution": "compile", **Blocks(64, {"few": 8}).to_json()}
    assert GpuSettings.read(stored) == GpuSettings("tf32", True, Blocks(64, {"few": 8}))
    assert GpuSettings.read({"precision": "tf32"}) is None
    for wrong in (0, -1, True, "64", 2.0, None):
        assert GpuSettings.read({"precision": "tf32", "block": wrong}) is None
    assert GpuSettings.read({"block": 64, "other_blocks": [1]}) is None


def test_operations_are_counted() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.flatten(2).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(h, h, h).mean(1)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Attention(), nn.Linear(8, 5)).eval()
    cost = model_cost(wrap(net), (3, 10, 10))
    assert cost.operations == 2 * (8 * 64 * 27 + 2 * 64 * 64 * 8 + 40)
    assert cost.layers == 4 and cost.memory is not None
    assert 4 * (300 + 3 * 8 * 64) <= cost.memory <= 4 * 100 * 8 * 64


def test_operations_of_torchs_own_attention_are_counted() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.flatten(2).transpose(1, 2)
            return self.attention(h, h, h, need_weights=False)[0].mean(1)

    # 36 tokens of 8 numbers: four projections, and two products of all tokens with all.
    assert model_cost(wrap(Attending().eval()), (8, 6, 6)).operations == 2 * 36 * 8 * (4 * 8 + 2 * 36)


def test_a_model_that_fails_or_is_no_module_has_no_cost() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no")

    assert model_cost(wrap(Failing().eval()), (3, 4, 4)) == ModelCost()
    assert model_cost(replace(wrap(nn.Linear(4, 2).eval()), differentiable=False), (4,)) == ModelCost()
    assert math.isinf(work(cost=ModelCost()).seconds())


GPU = torch.device("cuda")


class Many:
    """So many samples of the demonstration, as far as their number matters."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def shape(self) -> tuple[int, ...]:
        return 1, 28, 28


def on_gpu(n: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    """An evaluation as `prepare` leaves it on a GPU, and the events: its model only says that it is there."""
    monkeypatch.setattr(Device, "of", classmethod(lambda cls, device: H200))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(preparing, "try_precisions", lambda *_: found(9))
    data, heard = brinell.data.load("demo", 8), list[Any]()
    s: Any = prepare(coerce.as_classifier("demo"), data, Linf(0.1), by_name("autoattack"), brinell.Execution())
    oracle = replace(s.oracle, classifier=replace(s.oracle.classifier, device=GPU), sizes=())
    context = replace(s.context, oracle=oracle, capturable=True, listener=heard.append)
    s = replace(s, device=GPU, problem=Many(n), notes=[], context=context)
    chosen = preparing._chosen(s, brinell.Execution(**how), SMALL, choose_blocks(n, SMALL, H200.memory))
    return preparing.with_chosen(s, chosen), heard


def test_an_evaluation_on_a_gpu_takes_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    s, heard = on_gpu(1000, monkeypatch)
    assert isinstance(s.oracle, AcceleratedOracle) and not s.oracle.compiled
    assert (s.oracle.precision, s.context.precision, s.oracle.block, s.context.slots) == ("bfloat16",) * 2 + (256, 1024)
    assert [s.oracle.sized(kind).block for kind in ("legs", "few", "again")] == [512, 32, 8]
    assert s.precision_choice["precision"] == "bfloat16"
    assert s.notes == [e.text for e in heard if isinstance(e, Note)] and s.notes[0].startswith("Precision bfloat16")
    many, _ = on_gpu(10_000, monkeypatch)
    assert many.oracle.compiled and many.oracle.block == many.oracle.sized("legs").block == 512
    asked, heard = on_gpu(10_000, monkeypatch, precision="tf32", mode="graph")
    assert (asked.oracle.precision, asked.oracle.compiled) == ("tf32", False)
    assert not [e for e in heard if isinstance(e, Note)]


def test_workers_on_gpus_use_tf32_where_the_model_is_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    s = prepare(
        coerce.as_classifier("demo"), brinell.data.load("demo", 8), Linf(0.1), by_name("fgsm"), brinell.Execution(),
        device=GPU,
    )  # fmt: skip
    assert (s.context.precision, s.oracle.compiled, s.context.slots) == ("tf32", False, 1024)
    assert s.identity()["block"] == 256 and s.context.graph_cache is None


def test_a_pilot_takes_no_more_than_a_twentieth_of_a_run_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass on a GPU loads libraries: its time says nothing about the run."""
    takes_long = sys.modules["brinell.cost.estimate"]._takes_long  # type: ignore[attr-defined]
    s, _ = on_gpu(1000, monkeypatch)
    for n, long in ((1000, False), (100_000, True)):
        expected = preparing._workload(replace(s, problem=Many(n)), SMALL).seconds("bfloat16", True)
        assert takes_long(replace(s, pace=1.0, expected_seconds=expected)) == long


def test_no_pilot_because_the_first_pass_was_slow() -> None:
    """On a CPU a second pass decides: a second per row would make this the longest of runs."""
    takes_long = sys.modules["brinell.cost.estimate"]._takes_long  # type: ignore[attr-defined]
    s = prepare(
        coerce.as_classifier("demo"), brinell.data.load("demo", 8), Linf(0.1), by_name("pgd20"), brinell.Execution()
    )
    assert not takes_long(replace(s, pace=1.0))
    assert takes_long(replace(s, pace=1.0, problem=Many(10**9)))
