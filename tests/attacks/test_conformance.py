"""Every public attack keeps the contract, in every norm; and the check sees it when one does not."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import (
    APGD,
    DDN,
    FAB,
    FGSM,
    FMN,
    PGD,
    Bisect,
    Descend,
    Joint,
    Matching,
    Refine,
    SelectivePGD,
    SmallerBall,
    Square,
)
from brinell.core.attack import Attack, Requires
from brinell.core.references import References
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops.norms import NORMS
from brinell.ops.rowwise import take
from brinell.testing import check_attack, check_classifier

# Whatever is exported is here by itself; further variants are added by name.
DEFAULTS = {name: getattr(brinell.attacks, name)() for name in brinell.attacks.__all__}
REFERENCES = References(torch.arange(5), 3 * torch.eye(5), torch.linspace(-1, 1, 80).view(5, 16))
SHORT = {name: replace(a, steps=6) if hasattr(a, "steps") else a for name, a in DEFAULTS.items()}
SHORT |= {"Matching": Matching(6, references=REFERENCES), "Joint": Joint(APGD(6, "margin"))}
VARIANTS = {
    "APGD quirks": APGD(6, quirks="autoattack"),
    "APGD targeted": APGD(6, "dlr-targeted"),
    "PGD momentum": PGD(6, momentum=0.9),
    "FGSM targeted": FGSM("minimum-margin"),
    "FAB targeted": FAB(4, targeted=True),
    "Joint targeted": Joint(APGD(6, "minimum-margin"), how="min"),
    "Matching features": Matching(6, "features", REFERENCES),
    "Joint sum": Joint(PGD(6), 0.5, how="sum"),
    "Joint without gradients": Joint(Square(6, loss="margin")),
    "SelectivePGD orthogonal": SelectivePGD(6, orthogonal=True),
    "FMN targeted": FMN(6, loss="minimum-margin"),
    "DDN targeted": DDN(6, loss="ce-targeted"),
    "SmallerBall targeted": SmallerBall(APGD(6, "minimum-margin"), 0.25),
    "Refine FAB": Refine(FAB(3), 3),
    "Bisect Square": Bisect(Square(4), grow=2, halve=2),
    "Descend targeted": Descend(APGD(4, "minimum-margin"), before=FMN(4, loss="minimum-margin"), rounds=3),
}
CASES = [(name, attack, norm) for name, attack in {**SHORT, **VARIANTS}.items() for norm in attack.norms]


@pytest.mark.parametrize(
    ("attack", "norm"), [(a, norm) for _, a, norm in CASES], ids=[f"{name}-{norm.name}" for name, _, norm in CASES]
)
def test_conforms(attack, norm, shapes_checked):
    # In L2 attacks call the same functions as in Linf; tests/ops checks the shapes of norms.
    with shapes_checked(norm == attack.norms[0] or norm != NORMS["L2"]):
        check_attack(attack, [norm], samples=4, steps=4)


@pytest.mark.parametrize("quirks", [None, "autoattack"])
def test_the_larger_radii_of_l1_conform(quirks):
    check_attack(APGD(8, larger_eps=True, quirks=quirks), [NORMS["L1"]], samples=4)


@pytest.mark.parametrize("attack", [a for a in SHORT.values() if a.name != "square"], ids=lambda a: a.name)
def test_inputs_need_not_be_images(attack):
    norm = NORMS["L2"] if NORMS["L2"] in attack.norms else attack.norms[0]
    check_attack(attack, [norm], shape=(9,), samples=4, steps=4)


@pytest.mark.parametrize("attack", DEFAULTS.values(), ids=DEFAULTS.keys())
def test_defaults_are_sound(attack):
    assert hash(attack) == hash(replace(attack)) and attack == replace(attack)
    assert attack.queries >= 2 and isinstance(attack.requires, Requires)


# ------------------------------------------------------------------------------------------------- what it must see


@dataclass(frozen=True)
class Mixing(PGD):
    """Looks at the other rows."""

    def step(self, s, a, p, ball):
        return super().step(s, replace(a, grad=a.gradient - a.gradient.mean(0)), p, ball)


@dataclass(frozen=True)
class Lucky(PGD):
    """Draws from the global generator."""

    def init(self, p, ball):
        return super().init(replace(p, start=p.x + 0.01 * torch.rand_like(p.x)), ball)


@dataclass(frozen=True)
class Gambling(PGD):
    """Draws from the global generator, and throws the number away."""

    def step(self, s, a, p, ball):
        torch.rand(1)
        return super().step(s, a, p, ball)


@dataclass(frozen=True)
class Careless(PGD):
    """Works in place."""

    def step(self, s, a, p, ball):
        a.gradient.mul_(2)
        return super().step(s, a, p, ball)


@dataclass(frozen=True)
class Wide(PGD):
    """Forgets to project."""

    def step(self, s, a, p, ball):
        return replace(super().step(s, a, p, ball), x=(s.x + 0.9 * a.gradient.sign() * ball.eps.max()).clamp(0, 1))


@dataclass(frozen=True)
class Boxless(PGD):
    """Forgets the box."""

    def step(self, s, a, p, ball):
        return replace(super().step(s, a, p, ball), x=p.x + 0.5 * ball.eps[:, None, None, None] * 0 - 0.01)


@dataclass(frozen=True)
class Stuck(PGD):
    """Does not count."""

    def step(self, s, a, p, ball):
        return replace(super().step(s, a, p, ball), t=s.t)


@dataclass(frozen=True)
class Stubborn(PGD):
    """Ignores an explicit start."""

    def init(self, p, ball):
        return super().init(replace(p, start=None), ball)


@dataclass(frozen=True)
class Fragile(PGD):
    """Lets a loss that is no number into its points."""

    def step(self, s, a, p, ball):
        return super().step(s, replace(a, grad=a.gradient * (1 + 0 * a.loss)[:, None, None, None]), p, ball)


@dataclass(frozen=True)
class Halved(PGD):
    """Loses rows."""

    def init(self, p, ball):
        return take(super().init(p, ball), torch.arange(len(p.y) - 1))


@dataclass(frozen=True)
class Loud(PGD):
    """Has a name of its own."""

    name = "PGD"


@dataclass
class Melted(Attack[Any]):
    """Is not frozen."""

    steps: int = 3
    name = "melted"
    loss = "ce"
    requires = Requires.GRAD
    queries = 4
    minimum_norm = False
    init, step = PGD.init, PGD.step


BAD = {
    Mixing(3): "differs in a",
    Lucky(3): "when called twice",
    Gambling(3): "global generator",
    Careless(3): "in place",
    Wide(3): "leave the ball",
    Boxless(3): "leave the box",
    Stuck(3): "t went from",
    Stubborn(3): "explicit start",
    Fragile(3): "not finite",
    Halved(3): "rows for",
    Loud(3): "lower case",
}


@pytest.mark.parametrize(("attack", "why"), BAD.items(), ids=[type(a).__name__ for a in BAD])
def test_the_check_sees(attack, why):
    with pytest.raises(AssertionError, match=why):
        check_attack(attack, [NORMS["L2"]], samples=4)


def test_the_check_sees_what_is_no_attack():
    with pytest.raises(AssertionError, match="frozen"):
        check_attack(Melted())


# --------------------------------------------------------------------------------------------------------- classifiers


class Net(nn.Module):
    def __init__(self, spoil) -> None:
        super().__init__()
        self.net, self.spoil = brinell.models.demo.demo_net(), spoil

    def forward(self, x):
        return self.spoil(self.net(x), x)


def test_the_demo_model_conforms():
    x = brinell.data.load("demo", 6).x
    check_classifier(wrap(brinell.models.demo.demo_net()), x)
    check_classifier(wrap(brinell.models.demo.demo_net(), mean=0.3, std=0.3), x)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda z, x: z - z.mean(0), "other rows|position"),
        (lambda z, x: z + torch.rand_like(z), "two passes"),
        (lambda z, x: z.detach(), "detaches the gradient"),
        (lambda z, x: z * torch.nan, "finite"),
        (lambda z, x: z + (z.flip(1) - z).detach(), "finite differences"),
    ],
    ids=["mixes rows", "random", "no gradient", "nan", "wrong gradient"],
)
def test_the_check_of_classifiers_sees(spoil, why):
    with pytest.raises(AssertionError, match=why):
        check_classifier(wrap(Net(spoil).eval()), brinell.data.load("demo", 6).x.clone())


class Rude(TorchClassifier):
    """Writes into the points it is asked about, which `wrap` prevents."""

    def forward(self, x):
        out = super().forward(x)
        x.data.mul_(0.5)
        return out


def test_the_check_of_classifiers_sees_work_in_place():
    with pytest.raises(AssertionError, match="in place"):
        check_classifier(Rude(brinell.models.demo.demo_net()), brinell.data.load("demo", 6).x.clone())


def test_the_check_of_classifiers_sees_train_mode():
    with pytest.raises(AssertionError, match="train mode"):
        check_classifier(wrap(brinell.models.demo.demo_net().train()), brinell.data.load("demo", 6).x)
