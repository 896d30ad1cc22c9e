"""Probes on models whose truth is known: sound attacks raise no flag, each kind of failure raises its own."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, PGD
from brinell.errors import InputError, PlanError
from brinell.models.demo import demo_net
from brinell.ops.rowwise import where
from brinell.reliability import probe
from brinell.testing import duel, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")
SHORT = {"neighbours": 10, "queries": 40}


def look(world, attack, model=None, factor: float = 1.0, **options):
    eps = factor * world.distance("L2").median().item()
    model = world.classifier if model is None else brinell.wrap(model.eval())
    return probe(model, (world.x, world.y), brinell.L2(eps), attack, **{**SHORT, **options})


# ------------------------------------------------------------------------------------------------------ no false alarm

WORLDS = {
    "two classes": linear_world(2, n=12),
    "three classes": linear_world(3, n=12),
    "a hundred classes": linear_world(100, n=12),
    "two inputs": linear_world(2, (2,), n=12),
    "images": linear_world(4, (1, 5, 5), n=12),
}


@pytest.mark.parametrize("name", WORLDS)
def test_linear_models(name):
    found = look(WORLDS[name], brinell.Targets(APGD(25, "minimum-margin"), k=1 if "two" in name else 2))
    assert found.flagged == {} and found.level == "ok", str(found)
    assert 0 < found.broken < 12 and found.curve[-1][1] == 0


@pytest.mark.parametrize("attack", [APGD(20), APGD(20, "margin")], ids=lambda a: a.name)
def test_the_demo_model(attack):
    found = probe("demo", brinell.data.load("demo", 12), brinell.Linf(0.1), attack, **SHORT)
    assert found.flagged == {}, str(found)


def trained() -> tuple[nn.Module, brinell.Problem]:
    """A small network trained the ordinary way."""
    data = brinell.data.load("demo", 200)
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / (p.shape[-1] if p.ndim > 1 else 100) ** 0.5)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y).backward()
        optimiser.step()
    return net.eval(), data


def test_a_standardly_trained_model():
    net, data = trained()
    for eps in (0.005, 0.1):
        found = probe(net, data[:12], brinell.Linf(eps), APGD(20), **SHORT)
        assert found.flagged == {}, str(found)


# ------------------------------------------------------------------------------------------- each failure, its own flag

WORLD = duel(2, n=12)
NET = WORLD.classifier.module
# What follows when gradients do not lead to where adversarials are; each is a true statement about such a model.
CONSEQUENCES = {"black box", "random noise", "unconstrained failure", "loss surface"}


class Before(nn.Module):
    """A change of the input before a linear model, or of its logits after."""

    def __init__(self, before=lambda x: x, after=lambda z: z) -> None:
        super().__init__()
        self.net, self.before, self.after = NET, before, after

    def forward(self, x):
        return self.after(self.net(self.before(x)))


def test_saturated_softmax_has_no_gradient_for_cross_entropy():
    model = Before(after=lambda z: 1e5 * z)
    found = look(WORLD, PGD(20), model, factor=2.0)
    assert found["unavailable gradients"].level == "fail" and found["unavailable gradients"].value > 0.9
    assert set(found.flagged) <= {"unavailable gradients"} | CONSEQUENCES
    assert look(WORLD, PGD(40, loss="margin"), model, factor=2.0).flagged == {}


def test_quantised_inputs_have_no_gradient():
    found = look(WORLD, APGD(20, "margin"), Before(lambda x: (x * 255).round() / 255), factor=2.0)
    assert found["unavailable gradients"].value == 1 and found["loss surface"].level == "fail"
    assert set(found.flagged) <= {"unavailable gradients"} | CONSEQUENCES
    through = Before(brinell.models.bpda(lambda x: (x * 255).round() / 255))
    assert look(WORLD, APGD(40, "margin"), through, factor=2.0).flagged == {}


def test_a_rough_landscape():
    found = look(WORLD, APGD(20, "margin"), Before(after=lambda z: z + torch.sin(1e5 * z) * torch.tensor([0.0, 2.0])))
    assert found["unstable predictions"].level != "ok"
    assert not {"unavailable gradients", "transfer failure"} & set(found.flagged)


class Winners(nn.Module):
    """Keeps the k largest of its inputs (k-WTA)."""

    def forward(self, h):
        return h * (h >= h.topk(h.shape[1] // 10, dim=1).values[:, -1:])


def test_k_winners_take_all():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 600), Winners(), nn.Linear(600, 600), Winners(), nn.Linear(600, 3)).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.rand(16, 24, generator=generator)
    found = probe(net, (x, net(x).argmax(1)), brinell.Linf(0.03), APGD(20, "margin"), **SHORT)
    assert found["unstable predictions"].level != "ok", str(found)
    assert not {"unavailable gradients", "transfer failure"} & set(found.flagged)


@dataclass(frozen=True)
class Leaving(PGD):
    """Returns to the clean point at its last step."""

    def step(self, s, a, p, ball):
        after = super().step(s, a, p, ball)
        return replace(after, x=where(after.t == self.steps, p.x, after.x))


def test_an_attack_that_leaves_what_it_found():
    found = look(WORLD, Leaving(40, 0.1, "margin"), factor=1.2)
    assert set(found.flagged) == {"silent success"}
    assert found["silent success"].value == found.broken / 12 > 0.5
    assert look(WORLD, PGD(40, 0.1, "margin"), factor=1.2).flagged == {}


def test_three_short_steps_are_not_enough():
    found = look(WORLD, PGD(3, 0.02, "margin", random_start=False), factor=1.3)
    assert found["incomplete optimisation"].level == "fail" and found.broken < 6
    assert set(found.flagged) <= {"incomplete optimisation", "black box", "random noise", "unconstrained failure"}
    assert look(WORLD, PGD(60, 0.1, "margin", random_start=False), factor=1.3).flagged == {}


def test_a_surrogate_that_the_defence_does_not_follow():
    """The evaluated model looks at the other half of the coordinates."""
    other = Before(lambda x: x.roll(12, 1))
    eps = 2 * WORLD.distance("L2").max().item()
    found = probe(
        brinell.wrap(other.eval()), (WORLD.x, WORLD.y), brinell.L2(eps), PGD(40, loss="margin"), surrogate=NET, **SHORT
    )
    assert set(found.flagged) == {"transfer failure"}
    # By hand: the attack's points are known, and so is what either model says about them.
    assert 0 < found["transfer failure"].value <= 1


def test_gradients_of_the_wrong_sign():
    found = look(WORLD, PGD(40, loss="margin", random_start=False), Before(lambda x: 2 * x.detach() - x), factor=1.3)
    assert found["unconstrained failure"].value == 1 and found["loss surface"].level == "fail"
    assert set(found.flagged) <= CONSEQUENCES
    assert found["black box"].level != "ok"


# --------------------------------------------------------------------------------------------------- costs, promises


def test_passes_are_those_the_model_counted():
    """Without the looks at the door, which every evaluation takes, and with rows that only fill up blocks left out."""
    asked: list[torch.Tensor] = []

    class Counting(nn.Module):
        def forward(self, x):
            asked.append(x.detach().clone())
            return NET(x)

    found = look(WORLD, PGD(5, loss="margin"), Counting())
    rows = sum(len(x) for x in asked)
    assert found.forwards <= rows and found.forwards > 0.2 * rows
    assert found.samples == 12 and found.backwards < found.forwards


def test_two_probes_of_one_thing_are_equal():
    a, b = (look(WORLD, APGD(10, "margin"), slots=slots) for slots in (3, 64))
    assert a == b


def test_data_for_plots():
    found = look(WORLD, APGD(10, "margin"))
    radii, accuracies = zip(*found.curve, strict=True)
    assert list(radii) == sorted(radii) and list(accuracies) == sorted(accuracies, reverse=True)
    s = found.surface
    assert s is not None and len(s.margin) == len(s.along) == 9 and s.margin[8][4] > s.margin[4][4] > s.margin[0][4]


def test_bad_questions_are_refused():
    with pytest.raises(PlanError, match="a stage among"):
        look(WORLD, "autoattack", stage="nothing")
    with pytest.raises(InputError, match="at least 1 sample"):
        look(WORLD, "fgsm", samples=0)
    with pytest.raises(PlanError, match="deterministic models"):
        look(WORLD, "autoattack-rand")


def test_a_stage_that_a_plan_has_only_in_this_norm():
    """In L2 the plan has a stage that its stages for Linf lack."""
    ddn, quick = (brinell.Stage(PGD(10), label=name) for name in ("ddn", "quick"))
    plan = brinell.Plan("by norm", {"Linf": (quick,), "L2": (quick, ddn)})
    assert look(WORLD, plan, stage="ddn").attack == "ddn"
    with pytest.raises(PlanError, match="a stage among quick, got"):
        probe(WORLD.classifier, (WORLD.x, WORLD.y), brinell.Linf(0.1), plan, stage="ddn", **SHORT)


def test_models_with_a_detector():
    """The goal includes the detector, and so do the black box and the noise."""
    far = WORLD.x.mean(0)
    model = brinell.wrap(NET.eval(), detector=lambda x: (x - far).square().sum(1) - 1e3)
    eps = brinell.L2(WORLD.distance("L2").median().item())
    found = probe(model, (WORLD.x, WORLD.y), eps, brinell.attacks.Joint(APGD(30, "margin")), **SHORT)
    assert found.flagged == {} and found.attack == "joint-apgd-margin"


def test_a_detector_does_not_make_the_classifiers_gradient_look_wrong():
    """The surface is that of the classifier, whose gradient is followed: a detector around it changes nothing."""
    data, options = brinell.data.load("demo", 12), {"neighbours": 2, "queries": 5}
    bare = brinell.reliability.probe("demo", data, brinell.Linf(0.1), PGD(2), **options)
    # Rejects whatever differs from black and white, above all a step along a gradient.
    net = brinell.wrap(demo_net(), detector=lambda x: (x * (-x / 0.05).exp()).mean((1, 2, 3)) - 1e-2)
    guarded = brinell.reliability.probe(net, data, brinell.Linf(0.1), PGD(2), **options)
    assert guarded.samples == bare.samples
    assert guarded.surface == bare.surface
    assert guarded["loss surface"].value == bare["loss surface"].value
