"""Defences that do not defend: each is broken by the ensemble or flagged, for the reason that applies."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import Linf, ModelError, Targets, attacks, plan, wrap
from brinell.models import bpda
from brinell.models.demo import demo_net

pytestmark = pytest.mark.usefixtures("unchecked", "few")

EPS = Linf(0.2)
ENSEMBLE = plan(
    [
        attacks.APGD(steps=20),
        Targets(attacks.APGD(steps=15, loss="dlr-targeted"), 2),
        Targets(attacks.FAB(steps=6, targeted=True), 2),
        attacks.Square(steps=60),
    ],
    name="ensemble",
    strength="standard",
)


class Winners(nn.Module):
    """k-winners-take-all: only the largest share of a layer's activations survives (Xiao et al. 2020)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        f = x.flatten(1)
        least = f.topk(max(1, int(self.share * f.shape[1])), dim=1).values[:, -1:]
        return torch.where(f >= least, f, 0.0).view_as(x)


class Defended(nn.Module):
    def __init__(self, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.net, self.before, self.after = demo_net(), before, after

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x if self.before is None else self.before(x))
        return z if self.after is None else self.after(z)


@pytest.fixture(scope="module")
def data(demo: Any) -> Any:
    return demo[:32]


def winners() -> nn.Module:
    net = demo_net()
    for i, layer in enumerate(net.layers):
        if isinstance(layer, nn.ReLU):
            net.layers[i] = Winners(0.1)
    return net.eval()


def test_k_winners_take_all_is_broken(data: Any, quiet: Any) -> None:
    """Jumps in the loss stop a few steps of PGD, not adaptive steps, other losses and random search."""
    weak = quiet(winners(), data, Linf(0.3), attacks.PGD(steps=2, rel_step=0.1))
    run = quiet(winners(), data, Linf(0.3), ENSEMBLE)
    assert run.clean_accuracy.k >= 16
    assert run.robust_accuracy.value < 0.1
    assert weak.robust_accuracy.k >= run.robust_accuracy.k + 10
    assert "weak" in str(weak.verdict)


def test_a_quantised_input_is_flagged_twice(data: Any, quiet: Any, level: Any) -> None:
    """No gradients, and a black-box attack that finds what gradients cannot."""
    run = quiet(Defended(before=lambda x: (x * 5).round() / 5).eval(), data, EPS, ENSEMBLE)
    gradient_attacks = run.stages()[:3]
    square = run.stages()[3]
    assert square.broken > sum(s.broken for s in gradient_attacks)
    assert level(run, "zero gradient (ce)") == "warn"
    assert "zero gradient (dlr-targeted) warns" in str(run.verdict)
    assert "The black-box attack square broke" in str(run.verdict)
    assert "bpda" in str(run.verdict)
    assert run.verdict.level == "suspicious"


def test_a_quantised_input_is_broken_once_its_gradient_is_given(data: Any, quiet: Any) -> None:
    net = nn.Sequential(bpda(lambda x: (x * 5).round() / 5), demo_net()).eval()
    run = quiet(net, data, EPS, ENSEMBLE)
    assert run.clean_accuracy.k >= 20
    assert run.robust_accuracy.k <= 2
    assert run.verdict.level == "reliable"


def test_a_noisy_network_is_flagged_and_then_broken(data: Any, quiet: Any, level: Any, cut: Any) -> None:
    torch.manual_seed(0)
    net = Defended(before=lambda x: x + 0.1 * torch.randn_like(x)).eval()
    flagged = quiet(net, data, EPS, ENSEMBLE)
    assert level(flagged, "randomised") == "warn"
    assert "use the plan autoattack-rand" in str(flagged.verdict)
    assert flagged.verdict.level == "suspicious"
    run = quiet(net, data, EPS, cut("autoattack-rand", steps=10, queries=10, eot=6))
    assert run.clean_accuracy.k >= 20
    assert run.robust_accuracy.value < 0.15
    assert "randomised" not in str(run.verdict)


def test_probabilities_are_refused_flagged_and_broken(data: Any, quiet: Any, level: Any) -> None:
    net = Defended(after=lambda z: (20 * z).softmax(1)).eval()
    with pytest.raises(ModelError, match="final softmax"):
        quiet(net, data, EPS, ENSEMBLE)
    run = quiet(wrap(net, allow=["probabilities"]), data, EPS, ENSEMBLE)
    assert level(run, "probabilities") == "fail"
    assert run.verdict.level == "invalid"
    assert "probabilities" in run.verdict.reasons[0]
    # The remedy in the message: with the softmax gone the same attacks break the same network.
    bare = quiet(Defended(after=lambda z: 20 * z).eval(), data, EPS, ENSEMBLE)
    assert bare.clean_accuracy == run.clean_accuracy
    assert bare.robust_accuracy.k <= 5
    assert run.robust_accuracy.k > bare.robust_accuracy.k
    assert {f.anchor for f in bare.verdict.findings} <= {"verdict.md#missing-classes"}  # labelled by the network
