"""Every check: a model that trips it, one that must not, and where the Run says so."""

import cProfile
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import L2, Linf, ModelError, attacks, wrap
from brinell.models import bpda
from brinell.models.demo import demo_net

pytestmark = pytest.mark.usefixtures("unchecked")

EPS = Linf(0.05)
PLAN = [attacks.APGD(steps=2, loss="ce"), attacks.APGD(steps=2, loss="dlr")]


class Changed(nn.Module):
    """A network with something done to its input and its logits."""

    def __init__(self, net: nn.Module, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x if self.before is None else self.before(x))
        return z if self.after is None else self.after(z)


def by_autograd(net: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad(net(point).logsumexp(1).sum(), point)[0]


def by_backward(net: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        net(point).logsumexp(1).sum().backward()
    assert point.grad is not None
    return point.grad


def by_func(net: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return torch.func.grad(lambda point: net(point).logsumexp(1).sum())(x.detach())


class Optimising(nn.Module):
    """Moves its input along a gradient before it answers."""

    def __init__(self, net: nn.Module, how: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.how = net, how

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.01 * self.how(self.net, x))


class Half(nn.Module):
    """Weights and arithmetic in half precision."""

    def __init__(self, net: nn.Module, kind: torch.dtype) -> None:
        super().__init__()
        self.net, self.kind = net.to(kind), kind

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.to(self.kind)).float()


def by_length(net: nn.Module) -> nn.Module:
    """Another class when asked about one input alone."""
    return Changed(net, after=lambda z: z if len(z) > 1 else z.roll(1, 1))


@pytest.fixture
def data(tiny: Any, images: Any) -> tuple[Tensor, Tensor]:
    return images(tiny(), 16)


def messages(run: Any, name: str) -> str:
    return " ".join(c["message"] for c in run.checks if c["name"].startswith(name))


def test_a_plain_network_trips_nothing(tiny: Any, data: Any, quiet: Any) -> None:
    run = quiet(tiny(), data, EPS, PLAN)
    assert {c["level"] for c in run.checks} == {"ok"}
    # One check per defect, and one for every loss.
    names = [c["name"] for c in run.checks]
    assert len(names) == len(set(names))
    assert {"train mode", "randomised", "probabilities", "non-finite logits", "batch shape"} <= set(names)
    assert "Check " not in str(run)


def test_randomised(tiny: Any, data: Any, quiet: Any, level: Any, cut: Any) -> None:
    noisy = Changed(tiny(), before=lambda x: x + 0.05 * torch.randn_like(x)).eval()
    run = quiet(noisy, data, EPS, PLAN)
    assert level(run, "randomised") == "warn"
    assert run.verdict.level == "suspicious"
    assert "autoattack-rand" in str(run)
    # Noise is not mistaken for a dependence on the batch.
    assert level(run, "batch shape") == "ok"
    # The plan for such models does not complain about what it is made for.
    assert level(quiet(noisy, data, EPS, cut("autoattack-rand")), "randomised") == "ok"


def test_tiny_noise_counts(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    """Far too little to change a class, and still not a fixed function."""
    run = quiet(Changed(tiny(), after=lambda z: z + 1e-3 * torch.randn_like(z)).eval(), data, EPS, PLAN)
    assert level(run, "randomised") == "warn"


def test_noise_with_a_fixed_seed_is_no_noise(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    noise = 0.1 * torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    run = quiet(Changed(tiny(), before=lambda x: x + noise).eval(), data, EPS, PLAN)
    assert level(run, "randomised") == "ok"


@pytest.mark.parametrize("last", ["softmax", "sigmoid"])
def test_probabilities(last: str, tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    soft = Changed(tiny(), after=lambda z: z.softmax(1) if last == "softmax" else z.sigmoid()).eval()
    with pytest.raises(ModelError, match=last):
        quiet(soft, data, EPS, PLAN)
    run = quiet(wrap(soft, allow=["probabilities"]), data, EPS, PLAN)
    assert level(run, "probabilities") == "fail"
    assert run.verdict.level == "invalid"
    assert "probabilities" in str(run)


@pytest.mark.parametrize("after", [lambda z: z.log_softmax(1), lambda z: 2 * z.sigmoid(), lambda z: 2 * z.softmax(1)])
def test_what_only_resembles_probabilities(after: Any, tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    assert level(quiet(Changed(tiny(), after=after).eval(), data, EPS, PLAN), "probabilities") == "ok"


def test_zero_gradients_for_every_loss(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    quantised = Changed(tiny(), before=lambda x: (x * 8).round() / 8).eval()
    run = quiet(quantised, data, EPS, PLAN)
    for loss in ("ce", "dlr"):
        assert level(run, f"zero gradient ({loss})") == "warn"
        assert "zero at 100 % of the points checked (100 % of all coordinates)" in messages(
            run, f"zero gradient ({loss})"
        )
    assert run.verdict.level == "suspicious"
    assert "bpda" in str(run)


def test_zero_gradients_of_one_loss_only(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    """Cross-entropy saturates in large logits, DLR does not: that is worth a line, not a warning."""
    steep = Changed(tiny(), after=lambda z: 1e4 * z).eval()
    run = quiet(steep, data, EPS, PLAN)
    assert level(run, "zero gradient (ce)") == "info"
    assert level(run, "zero gradient (dlr)") == "ok"
    assert "another loss of the plan has gradients" in messages(run, "zero gradient (ce)")
    assert "zero gradient" not in str(run.verdict)
    assert level(quiet(steep, data, EPS, PLAN[:1]), "zero gradient (ce)") == "warn"


def test_the_share_of_zero_coordinates(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    """Half of the image has no gradient: no row is blind, and the message still gives the share."""
    kept = torch.zeros(1, 8, 8)
    kept[:, :4] = 1
    run = quiet(Changed(tiny(), before=lambda x: x * kept).eval(), data, EPS, PLAN)
    assert level(run, "zero gradient") == "ok"
    assert "50.0 % of the coordinates of the ce gradient are exactly zero" in messages(run, "zero gradient (ce)")


def test_misclassified_points_need_no_gradient(tiny: Any, images: Any, quiet: Any, level: Any) -> None:
    """DLR is constant where the true class is the third: that says nothing about the points under attack."""
    net = tiny()
    x, y = images(net, 16)
    y[:4] = net(x).topk(3, dim=1).indices[:4, 2]
    assert level(quiet(net, (x, y), Linf(0.001), PLAN[1:]), "zero gradient (dlr)") == "ok"


def test_targeted_losses_are_looked_at_too(tiny: Any, data: Any, quiet: Any, level: Any, cut: Any) -> None:
    quantised = Changed(tiny(), before=lambda x: (x * 8).round() / 8).eval()
    run = quiet(quantised, data, EPS, cut("autoattack"))
    names = {c["name"] for c in run.checks if c["level"] == "warn"}
    assert {"zero gradient (ce)", "zero gradient (dlr-targeted)", "zero gradient (minimum-margin)"} <= names


def test_a_plan_without_gradients_does_not_ask_for_them(tiny: Any, data: Any, quiet: Any) -> None:
    quantised = Changed(tiny(), before=lambda x: (x * 8).round() / 8).eval()
    run = quiet(quantised, data, EPS, [attacks.Square(steps=3)])
    assert not [c for c in run.checks if c["name"].startswith("zero gradient")]


@pytest.mark.parametrize("how", [by_autograd, by_backward, by_func])
def test_optimisation_in_forward(how: Any, tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    run = quiet(Optimising(tiny(), how).eval(), data, EPS, PLAN)
    assert level(run, "optimisation in forward") == "warn"
    assert run.verdict.level == "suspicious"
    assert "forward pass itself computes gradients" in str(run)


def test_gradients_of_the_attack_are_not_the_models(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    """BPDA computes gradients on the way back, and a forward pass may well switch gradients on and off."""
    through = nn.Sequential(bpda(lambda x: (x * 8).round() / 8), tiny()).eval()
    assert level(quiet(through, data, EPS, PLAN), "optimisation in forward") == "ok"

    def switching(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mean()
        return x

    assert level(quiet(Changed(tiny(), before=switching).eval(), data, EPS, PLAN), "optimisation in forward") == "ok"


def test_a_profiler_of_the_caller_goes_on(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    """The check looks at calls as a profiler does; one that is already there must survive it."""
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        mine = sys.getprofile()
        quiet(tiny(), data, EPS, PLAN)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert calls
    profile = cProfile.Profile()
    run = profile.runcall(quiet, tiny(), data, EPS, PLAN)
    assert level(run, "optimisation in forward") == "ok"
    # Stages run after the check.
    assert any("run_stage" in str(entry.code) for entry in profile.getstats())


def test_black_box_beats_white_box(net: nn.Module, demo: Any, quiet: Any) -> None:
    plan = [attacks.APGD(steps=3), attacks.Square(steps=40)]
    blind = Changed(net, before=lambda x: (x * 5).round() / 5).eval()
    run = quiet(blind, demo[:32], Linf(0.2), plan)
    assert run.stages()[1].broken > 0
    assert "The black-box attack square broke" in str(run.verdict)
    assert "masked" in str(run)
    assert run.verdict.level == "suspicious"
    plain = quiet(net, demo[:32], Linf(0.2), plan)
    assert plain.stages()[0].broken > 0
    assert "The black-box attack" not in str(plain)


def test_a_black_box_attack_that_goes_first_beats_nobody(net: nn.Module, demo: Any, quiet: Any) -> None:
    run = quiet(net, demo[:16], Linf(0.2), [attacks.Square(steps=40), attacks.APGD(steps=3)])
    assert run.stages()[0].broken > 0
    assert "The black-box attack" not in str(run)


def test_black_box_attacks_that_see_every_sample_beat_nobody(net: nn.Module, demo: Any, quiet: Any) -> None:
    plan = [attacks.APGD(steps=10), attacks.Square(steps=20)]
    run = quiet(net, demo[:16], Linf(0.2), plan, individual=True)
    after = [p.k for _, p in run.accuracy_after()]
    assert after[0] == after[1]
    assert run.stages()[1].broken > 0
    assert "The black-box attack" not in str(run)


def test_too_few_classes(tiny: Any, images: Any, quiet: Any, level: Any, cut: Any) -> None:
    net = tiny(3)
    run = quiet(net, images(net, 8), EPS, cut("autoattack"))
    assert level(run, "few classes") == "info"
    assert "3 classes" in str(run)
    net = tiny(10)
    assert level(quiet(net, images(net, 8), EPS, cut("autoattack")), "few classes") == "ok"


def test_train_mode(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    net = tiny()
    net[1].train()
    with pytest.raises(ModelError, match=r"net\.eval\(\)"):
        quiet(net, data, EPS, PLAN)
    run = quiet(wrap(net, allow=["train mode"]), data, EPS, PLAN)
    assert level(run, "train mode") == "fail"
    assert run.verdict.level == "invalid"
    assert "train mode in 1" in str(run)
    assert level(quiet(net.eval(), data, EPS, PLAN), "train mode") == "ok"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits(value: float, tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    bright = float(data[0].flatten(1).sum(1).median())

    def spoil(x: Tensor) -> Tensor:
        return torch.where((x.flatten(1).sum(1) > bright)[:, None, None, None], value, x)

    run = quiet(Changed(tiny(), before=spoil).eval(), data, EPS, PLAN)
    assert level(run, "non-finite logits") == "fail"
    assert "of 16 clean inputs" in str(run)
    assert run.verdict.level == "invalid"
    assert any("non-finite logits" in flags for flags in run.rows()["flags"].to_pylist())


def test_an_attack_that_stands_still_is_noticed(tiny: Any, data: Any, quiet: Any) -> None:
    """Rounded logits are flat between the steps: PGD stays at its start, and the verdict says so."""
    moving = quiet(tiny(), data, EPS, "pgd20")
    assert not any("stood still" in flags for flags in moving.rows()["flags"].to_pylist())
    run = quiet(Changed(tiny(), after=lambda z: (4 * z).round() / 4).eval(), data, EPS, "pgd20")
    still = [flags for flags in run.rows()["flags"].to_pylist() if "stood still" in flags]
    assert len(still) > 1
    (finding,) = [f for f in run.verdict.findings if f.anchor == "verdict.md#stood-still"]
    assert finding.message.startswith(f"The attack pgd-ce stood still on {len(still)} of ")


@pytest.mark.parametrize("threat", [Linf(0.1), L2(1.0)])
def test_saturated_losses_stand_still_on_images(threat: Any, quiet: Any) -> None:
    """A random start in Linf lies on the surface of the ball in some coordinate; without a gradient it stays there."""
    net = Changed(demo_net(), after=lambda z: 1e6 * z).eval()
    run = quiet(net, brinell.data.load("demo")[:24], threat, "pgd20")
    attacked = int((np.asarray(run.rows()["attack"]) == "pgd-ce").sum())
    still = [flags for flags in run.rows()["flags"].to_pylist() if "stood still" in flags]
    assert len(still) > 0.8 * attacked


def test_very_large_logits_are_finite(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    run = quiet(Changed(tiny(), after=lambda z: 1e30 * z).eval(), data, EPS, PLAN)
    assert level(run, "non-finite logits") == "ok"


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_weights(kind: torch.dtype, tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    run = quiet(Half(tiny(), kind).eval(), data, EPS, PLAN)
    assert level(run, "half-precision weights") == "warn"
    assert str(kind).removeprefix("torch.") in str(run)
    assert run.verdict.level == "suspicious"


def test_whole_numbers_among_the_buffers_are_no_half_precision(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), tiny()).eval()
    assert level(quiet(net, data, EPS, PLAN), "half-precision weights") == "ok"


def test_predictions_that_depend_on_the_batch_shape(tiny: Any, data: Any, quiet: Any, level: Any) -> None:
    run = quiet(by_length(tiny()).eval(), data, EPS, PLAN)
    assert level(run, "batch shape") == "warn"
    assert "8 of 8 clean inputs get another class" in str(run)
    assert level(run, "randomised") == "ok"
    # Logits may depend on it, as long as the class does not.
    scaled = Changed(tiny(), after=lambda z: z * len(z)).eval()
    assert level(quiet(scaled, data, EPS, PLAN), "batch shape") == "ok"


def test_nothing_leaks_into_the_next_evaluation(tiny: Any, data: Any, quiet: Any) -> None:
    """The reference's counters of gradient calls are never reset: one adaptive model taints all later ones."""
    before = quiet(tiny(), data, EPS, PLAN)
    bad = [
        Optimising(tiny(), by_autograd),
        by_length(tiny()),
        Half(tiny(), torch.bfloat16),
        Changed(tiny(), before=lambda x: x + 0.1 * torch.randn_like(x)),
        Changed(tiny(), before=lambda x: (x * 8).round() / 8),
    ]
    for net in bad:
        assert quiet(net.eval(), data, EPS, PLAN).verdict.level == "suspicious"
        after = quiet(tiny(), data, EPS, PLAN)
        assert after.checks == before.checks
        assert after.verdict == before.verdict
