"""The catalogue of broken defences, each with its original, flawed evaluation and a stronger one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from brinell.attacks import APGD, FAB, FGSM, PGD, Alternating, Joint, SelectivePGD
from brinell.core.plan import Plan, Restarts, Stage, Targets
from brinell.core.threat import Linf, Threat
from brinell.defences import models
from brinell.defences.readouts import Squashed
from brinell.errors import one_of
from brinell.models.wrap import TorchClassifier

EPS = 0.1
# The expected outcome of the binarization test for the original evaluation.
CAUGHT, MISSED = "caught", "missed"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a defence: the model with the gradients that the attack uses, and the attack plan.

    `how` describes the evaluation in words. `readout` and `layer` are options of the binarization test. With
    `predicted` the attack uses the model's own prediction instead of the true label.
    """

    how: str
    build: Callable[[], TorchClassifier]
    plan: Plan
    readout: Any = "linear"
    layer: Any = None
    predicted: bool = False


@dataclass(frozen=True)
class Defence:
    """A broken defence: the paper it imitates, and its original and stronger evaluations.

    `expected` is "caught" if the original evaluation should fail the binarization test, else "missed". `kappa` is the
    closeness κ of the test; if None, it is the hardest κ at which the stronger evaluation is almost perfect.
    """

    name: str
    imitates: str
    original: Evaluation
    stronger: Evaluation
    threat: Threat
    expected: str = CAUGHT
    inner: int = 199
    kappa: float | None = None
    why: str = ""

    def build(self) -> TorchClassifier:
        """Return the defended classifier, with the gradients of the stronger evaluation."""
        return self.stronger.build()


def _plan(name: str, attack: Any, draws: int = 1) -> Plan:
    return Plan(name, (attack if isinstance(attack, Stage) else Stage(attack),), draws=draws)


PGD20 = _plan("pgd-20", PGD(20))
PGD_MARGIN = _plan("pgd-100-margin", PGD(100, rel_step=0.05, loss="margin"))
TARGETED = Plan("apgd-targets", (Stage(APGD(100, loss="margin")), Targets(APGD(100, loss="dlr-targeted"), 9)))
APGD_MARGIN = _plan("apgd-100-margin", APGD(100, loss="margin"))


def _defence(
    name: str,
    imitates: str,
    flaw: str,
    remedy: str,
    build: Callable[[bool], TorchClassifier],
    plans: tuple[Plan, Plan],
    *,
    eps: float = EPS,
    readouts: tuple[Any, Any] = ("linear", "linear"),
    layer: Any = None,
    predicted: bool = False,
    **more: Any,
) -> Defence:
    original = Evaluation(flaw, partial(build, False), plans[0], readouts[0], layer, predicted)
    stronger = Evaluation(remedy, partial(build, True), plans[1], readouts[1], layer)
    return Defence(name, imitates, original, stronger, Linf(eps), **more)


def _same(build: Callable[[], TorchClassifier]) -> Callable[[bool], TorchClassifier]:
    """Return a builder that ignores `stronger`: both evaluations use the same model; the flaw lies in the attack."""

    def either(_: bool) -> TorchClassifier:
        return build()

    return either


VOTES = (Squashed(models.GAIN, False), Squashed(models.GAIN, True))
EVADING = Plan(
    "evading",
    (
        Stage(PGD(20)),
        Stage(Joint(APGD(50, loss="margin"))),
        Stage(SelectivePGD(40), label="selective"),
        Targets(Alternating(40), 3),
    ),
)

DEFENCES: tuple[Defence, ...] = (
    _defence(
        "thermometer",
        "Buckman et al. 2018, Thermometer encoding",
        "seven steps through an encoding relaxed so sharply that it is flat almost everywhere",
        "the gradient of a ramp instead of steps (BPDA), a margin loss, adaptive steps",
        models.thermometer,
        (_plan("pgd-7", PGD(7)), APGD_MARGIN),
    ),
    _defence(
        "k-winners",
        "Xiao et al. 2020, k-winners-take-all",
        "ten steps along a gradient that jumps from point to point",
        "gradients averaged over a neighbourhood, a margin loss, restarts",
        models.winners,
        (_plan("pgd-10", PGD(10)), _plan("pgd-30-margin x 4", Restarts(PGD(30, rel_step=0.1, loss="margin"), 4))),
        kappa=0.9,
    ),
    _defence(
        "logit-scaling",
        "Papernot et al. 2016, Defensive distillation",
        "cross-entropy of logits so large that its gradient is exactly zero",
        "a margin loss",
        _same(models.scaled),
        (PGD20, APGD_MARGIN),
    ),
    _defence(
        "saturation",
        "Nayebi & Ganguli 2017, Biologically inspired protection",
        "gradients through activations driven into their flat parts",
        "the slope 1 for the activation on the way back (BPDA)",
        models.saturated,
        (PGD20, PGD_MARGIN),
        eps=0.06,
    ),
    _defence(
        "quantisation",
        "Xu et al. 2018, Feature squeezing (bit depth)",
        "gradients through rounding, which has none",
        "the identity on the way back (BPDA)",
        models.quantised,
        (PGD20, APGD_MARGIN),
    ),
    _defence(
        "compression",
        "Guo et al. 2018, Countering adversarial images using input transformations (JPEG)",
        "gradients through rounded coefficients, which have none",
        "the identity on the way back (BPDA)",
        models.jpeg,
        (PGD20, APGD_MARGIN),
    ),
    _defence(
        "noise",
        "Xie et al. 2018, Mitigating adversarial effects through randomization (here: noise)",
        "one step along the gradient of a single draw",
        "twenty steps, each along the mean gradient of 16 draws, with a margin loss",
        models.noisy,
        (_plan("fgsm", FGSM(), 5), _plan("pgd-20-margin", PGD(20, rel_step=0.15, loss="margin"), 5)),
        expected=MISSED,
        inner=49,
        kappa=0.25,
        why="Noise lets only an easy test hold (kappa 0.25), and a single step passes that.",
    ),
    _defence(
        "mixup",
        "Pang et al. 2020, Mixup inference",
        "five steps along gradients of the network alone, without the mixtures",
        "gradients through the mixtures, a margin loss",
        models.mixed,
        (_plan("pgd-5", PGD(5)), _plan("pgd-40-margin", PGD(40, rel_step=0.1, loss="margin"))),
        eps=0.05,
        expected=MISSED,
        why="The network alone is so similar to its mixtures that its gradients lead to what the test hides.",
    ),
    _defence(
        "ensemble",
        "Sen et al. 2020, EMPIR (the vote)",
        "gradients through votes, which are flat where the members are sure",
        "gradients of the mean of the members' logits, a margin loss",
        models.ensemble,
        (PGD20, PGD_MARGIN),
        readouts=VOTES,
        layer=("heads.0", "heads.1", "heads.2"),
    ),
    _defence(
        "output-codes",
        "Verma & Swami 2019, Error-correcting output codes",
        "gradients through squashed bits, which are flat where a bit is clear",
        "gradients without the squashing, a margin loss",
        models.codes,
        (PGD20, PGD_MARGIN),
        readouts=VOTES,
        layer="head",
    ),
    _defence(
        "prototypes",
        "Pang et al. 2020, Rethinking softmax cross-entropy loss (MMC)",
        "cross-entropy of squared distances so large that its gradient is exactly zero",
        "a margin loss",
        _same(models.prototypes),
        (PGD20, APGD_MARGIN),
        readouts=("prototypes", "prototypes"),
        layer="head",
    ),
    _defence(
        "masking",
        "Zhang & Wang 2019, Feature scattering (masked gradients)",
        "gradients of a fast ripple on the features instead of the features' own",
        "gradients without the ripple (BPDA), a margin loss, adaptive steps",
        models.rippled,
        (PGD20, APGD_MARGIN),
    ),
    _defence(
        "separated-features",
        "Mustafa et al. 2019, Adversarial defense by restricting the hidden space",
        "ten steps without a random start, on a cross-entropy whose gradient vanishes where classes lie far apart",
        "FAB, which follows the gradients of the logits",
        _same(models.separated),
        (_plan("pgd-10", PGD(10, random_start=False)), _plan("fab", FAB())),
    ),
    _defence(
        "adversarial-interpolation",
        "Zhang & Xu 2020, Adversarial interpolation training",
        "twenty steps along the gradient of cross-entropy, towards no class in particular",
        "more and adaptive steps, a margin loss, then every other class as a target",
        _same(models.interpolation),
        (PGD20, TARGETED),
        expected=MISSED,
        why="The gradients of this small network are sound. The attack lacks target classes; two classes need none.",
    ),
    _defence(
        "batch-statistics",
        "Sarkar et al. 2021, Curriculum adversarial training",
        "gradients with batch normalisation left in train mode",
        "gradients with frozen statistics, more steps, a margin loss",
        models.frozen,
        (PGD20, APGD_MARGIN),
        eps=0.05,
    ),
    _defence(
        "tiny-steps",
        "Zimmermann et al. 2022, a plain network attacked with steps that are too small",
        "steps 255 times too short, as if pixels went up to 255",
        "adaptive steps, a margin loss",
        _same(models.bare),
        (_plan("pgd-20", PGD(20, rel_step=0.25 / 255, random_start=False)), APGD_MARGIN),
        eps=0.06,
    ),
    _defence(
        "predicted-label",
        "Sen et al. 2020, EMPIR (the evaluation)",
        "the attack runs away from the predicted label, and so puts mistakes of the model right",
        "the same attack, told the true label",
        _same(models.bare),
        (APGD_MARGIN, APGD_MARGIN),
        predicted=True,
        expected=MISSED,
        why="In the test the predicted label is the true one: a wrong call of a good attack does not show.",
    ),
    _defence(
        "statistical-test",
        "Roth et al. 2019, The odds are odd",
        "an attack on the classifier that ignores the detector",
        "attacks that look at both",
        _same(models.shaken),
        (PGD20, EVADING),
        eps=0.05,
    ),
    _defence(
        "leave-one-out",
        "Yang et al. 2020, ML-LOO",
        "an attack on the classifier that ignores the detector",
        "attacks that look at both",
        _same(models.left_out),
        (PGD20, EVADING),
        eps=0.05,
    ),
    _defence(
        "trapdoor",
        "Shan et al. 2020, Gotta catch 'em all",
        "steps so large that the attack falls into a trapdoor, and no eye for the detector",
        "attacks that look at both",
        _same(models.trapdoor),
        (_plan("pgd-20", PGD(20, rel_step=0.5)), EVADING),
        eps=0.05,
    ),
)
"""The defences; those with a detector come last."""


def find(name: str) -> Defence:
    """Return a defence by name.

    >>> find("thermometer").expected
    'caught'
    """
    by_name = {d.name: d for d in DEFENCES}
    return by_name[one_of("a defence", name, by_name)]
