"""The binarization test runs the stages that the plan has for the threat's norm."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.reliability.conftest import NETS, fixed, samples

import brinell
from brinell.core.plan import Stage
from brinell.reliability.binarization import trials


def test_minimal_in_l2_is_tested_with_ddn(monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage, names = trials.run_stage, []

    def recorded(context: Any, stage: Stage, *args: Any) -> Iterator[Any]:
        names.append(stage.name)
        return run_stage(context, stage, *args)

    monkeypatch.setattr(trials, "run_stage", recorded)
    options: Any = {"inner": 20, "kappa": 0.9, "reference": "fgsm", "random_queries": 2, "progress": False}
    brinell.test_attack(fixed(NETS["mlp"]()), brinell.Problem(*samples(3)), brinell.L2(0.3), "minimal", **options)
    assert names[:5] == ["fmn-100", "ddn", "fmn-t", "fab-t", "pursuit-down"]
