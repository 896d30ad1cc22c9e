"""The search of the plan `exact`, against exact distances; its points are verified by the engine."""

import pytest
import torch
from tests.certification.test_exact import known, world
from torch import nn

import brinell
from brinell.attacks import MIFGSM
from brinell.core.plan import Stage
from brinell.core.start_pool import ActivationSearch
from brinell.core.threat import L2, Linf, threat
from brinell.errors import ModelError, PlanError
from brinell.ops import rng

SEARCH = Stage(MIFGSM(steps=1), label="activation-search", search=ActivationSearch(batches=5, steps=10))
WIDTHS = (3, 3, 3)


def run(net: nn.Module, x: torch.Tensor, y: torch.Tensor, limits: object, slots: int = 64) -> brinell.results.Run:
    return brinell.evaluate(net, (x, y), limits, [SEARCH], slots=slots, progress=False, test=False)


def test_it_breaks_samples_just_beyond_their_distance_and_none_before() -> None:
    net, x = world(0, WIDTHS), rng.uniform(rng.keys(0, torch.arange(2)), (3,))
    y = net(x).argmax(1)
    exact = torch.tensor([known(0, WIDTHS, row) for row in range(2)])
    for factor, broken in ((1.02, [0, 1]), (0.98, [])):
        for slots in (1, 64):
            found = run(net, x, y, threat("Linf", factor * exact), slots)
            assert found.adversarials().ids.tolist() == broken


def test_what_it_cannot_do_is_refused() -> None:
    net, x = world(0, WIDTHS), rng.uniform(rng.keys(0, torch.arange(2)), (3,))
    with pytest.raises(PlanError, match="the threat Linf"):
        run(net, x, net(x).argmax(1), L2(0.1))
    other = nn.Sequential(*net, nn.LogSoftmax(1)).eval()
    with pytest.raises(ModelError, match="LogSoftmax"):
        run(other, x, net(x).argmax(1), Linf(1e-3))
    with pytest.raises(PlanError, match="at least 1 batch"):
        ActivationSearch(batches=0)
