"""How many rows a model call has: by the kind of device and attack alone."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engine.fixed import Fixed, images, run

import brinell
from brinell.attacks import APGD, PGD, Pursuit, Square
from brinell.core.plan import Restarts, Targets, stage
from brinell.core.threat import Linf
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.oracle import Oracle
from brinell.evaluation import run_stage
from brinell.evaluation.context import StageContext
from brinell.evaluation.run_stage import stage_oracle


class Uneven(APGD):
    """An attack that gives samples up."""

    abandons_early = True


STAGES = {
    "one run": (stage(APGD()), 256),
    "one run without gradients": (stage(Square()), 256),
    "targets": (stage(Targets(APGD(loss="dlr-targeted"))), 512),
    "restarts": (Restarts(stage(APGD()), 5), 512),
    "branches": (stage(Pursuit()), 128),
    "uneven": (stage(Uneven()), 32),
}


def setup_for(device: str, slots: int, graph_cache: GraphCache | None, measured: bool = True) -> StageContext:
    there: Any = SimpleNamespace(device=torch.device(device))
    oracle = Oracle(there, {"cuda": 256, "cpu": 32}[device])
    return StageContext(oracle, Linf(0.1), 0, slots, graph_cache=graph_cache, shape=(3, 8, 8) if measured else None)


@pytest.mark.parametrize("kind", STAGES)
def test_recorded_or_not_the_shape_is_the_same(kind: str) -> None:
    one, rows = STAGES[kind]
    plain, recorded = (stage_oracle(setup_for("cuda", 1024, r), one).block for r in (None, GraphCache()))
    assert plain == recorded == rows
    assert stage_oracle(setup_for("cpu", 128, None), one).block == 32


@pytest.mark.parametrize(("slots", "kind", "room"), [(256, "legs", 512), (1024, "legs", 1024), (1024, "few", 256)])
def test_measured_slots_fill_a_call(slots: int, kind: str, room: int) -> None:
    recorded = setup_for("cuda", slots, GraphCache())
    assert run_stage._slots(recorded, recorded.oracle.sized(kind)) == room
    told = setup_for("cuda", slots, GraphCache(), measured=False)
    assert run_stage._slots(told, told.oracle.sized(kind)) == slots


def test_padding_is_counted() -> None:
    """The Run says how many rows the model was asked: those of its calls, up to a few that only look at its dtype."""
    net, rows = brinell.models.demo.demo_net(), []
    net.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    run = brinell.evaluate(net, brinell.data.load("demo", 4), Linf(0.1), "fgsm", progress=False, test=False)
    assert 0 <= sum(rows) - run.manifest["asked_rows"] < 32
    assert run.manifest["asked_rows"] > run.cost.forwards


def test_replayed_calls_are_counted() -> None:
    class Replayed(Fixed):
        replays = True

    (classifier, x, y), step = images(16), PGD(steps=60)
    plain, oracle = Oracle(classifier, 8), Oracle(classifier, 8)
    run(classifier, x, y, Linf(1e-6), step, GraphCache(make=Fixed), oracle=plain)
    run(classifier, x, y, Linf(1e-6), step, GraphCache(make=Replayed), oracle=oracle)
    # A fake replay also calls the model: every row counts twice.
    assert oracle.calls.rows == 2 * plain.calls.rows >= 2 * 16 * step.queries
