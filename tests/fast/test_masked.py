"""Masked gradients mislead a plan that follows margins: it says so, and escalating finds what it missed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, Plan, Run
from brinell.attacks.catalogue import by_name
from brinell.evaluation.plan import audited
from brinell.models.demo import demo_net

pytestmark = pytest.mark.usefixtures("unchecked", "few")

EPS = Linf(0.1)


class Defended(nn.Module):
    """The demo network behind and before something that is no defence."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.net, self.before, self.after = demo_net(), before, after

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x if self.before is None else self.before(x))
        return z if self.after is None else self.after(z)


class Winners(nn.Module):
    """k-winners-take-all: only the largest share of a layer's activations survives (Xiao et al. 2020)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        f = x.flatten(1)
        least = f.topk(max(1, int(self.share * f.shape[1])), dim=1).values[:, -1:]
        return torch.where(f >= least, f, 0.0).view_as(x)


def winners() -> nn.Module:
    net = demo_net()
    for i, layer in enumerate(net.layers):
        if isinstance(layer, nn.ReLU):
            net.layers[i] = Winners(0.1)
    return net.eval()


def steep() -> nn.Module:
    """Logits times 1000: cross-entropy's gradient vanishes."""
    return Defended(after=lambda z: 1000 * z).eval()


def quantised() -> nn.Module:
    """Eight levels per pixel: every gradient vanishes."""
    return Defended(before=lambda x: (x * 7).round() / 7).eval()


# Each network with what gives it away: a sentence of the verdict. Jumps have gradients, so only the audit sees them.
MASKED = {
    "steep": (steep, "zero gradient (ce) warns"),
    "quantised": (quantised, "zero gradient (margin-towards) warns"),
    "winners": (winners, "The full plan broke"),
}
EVERY_MASK = pytest.mark.parametrize(("net", "why"), MASKED.values(), ids=MASKED.keys())


def evaluated(net: nn.Module, plan: Plan, n: int, **more: Any) -> Run:
    return brinell.evaluate(
        net, brinell.data.load("demo")[:n], EPS, plan, **{"progress": False, "escalate": False, **more}
    )


@EVERY_MASK
def test_masked_gradients_are_never_reliable(net: Callable[[], nn.Module], why: str, small: Any) -> None:
    run = evaluated(net(), small(0.5), 48)
    assert run.clean_accuracy.k >= 25
    assert run.verdict.level == "suspicious"
    assert why in str(run.verdict)


def test_it_is_not_luck_that_jumps_are_found(small: Any) -> None:
    """Another seed audits others."""
    run = evaluated(winners(), small(0.5), 48, seed=1)
    assert run.audit is not None and run.audit.objects


def test_a_healthy_network_is_reliable(small: Any) -> None:
    """The same plan, so it is not the plan that is suspicious."""
    run = evaluated(demo_net(), small(0.5), 160)
    assert run.audit is not None and run.audit.audited >= 20
    assert 0 < run.robust_accuracy.k < run.clean_accuracy.k
    assert run.verdict.level == "reliable", run.verdict


@pytest.mark.parametrize("net", [quantised, winners])
def test_escalating_finds_what_was_missed(net: Callable[[], nn.Module], small: Any) -> None:
    short, run = evaluated(net(), small(0.5), 32), evaluated(net(), small(0.5), 32, escalate=True)
    assert run.audit is not None and run.audit.complete
    assert run.robust_accuracy.k < short.robust_accuracy.k
    for name in run.attacks:
        assert set(run.survivors().tolist()) <= {r["sample_id"] for r in run.rows().to_pylist() if r["attack"] == name}


@pytest.mark.slow
@EVERY_MASK
def test_the_real_plan_on_masked_gradients(net: Callable[[], nn.Module], why: str) -> None:
    run = evaluated(net(), by_name("fast"), 256)
    assert run.verdict.level == "suspicious"
    assert why in str(run.verdict)


@pytest.mark.slow
def test_the_real_plan_on_a_healthy_network() -> None:
    """With every fourth survivor audited, 300 samples are enough; all else costs a fraction of the audit."""
    run = evaluated(demo_net(), audited(by_name("fast"), 0.25), 300)
    assert run.audit is not None and run.audit.audited >= 30
    assert 0 < run.robust_accuracy.k < run.clean_accuracy.k
    # Square may find a sample that no gradient leads to; the attacks that follow gradients find none.
    assert [s.broken for s in run.stages()[1:4]] == [0, 0, 0]
    assert run.verdict.level == "reliable", run.verdict
    assert 10 * (run.cost.forwards - run.audit.cost.forwards) < run.audit.cost.forwards
