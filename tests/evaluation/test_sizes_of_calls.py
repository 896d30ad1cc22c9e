"""How many rows a model call has: by the kind of device and attack alone."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from brinell.attacks import APGD, Pursuit, Square
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
