"""Training methods with citations: the attack that makes the training points, and the loss minimised on them."""

from dataclasses import dataclass, fields
from typing import Any

from brinell.attacks import APGD, PGD
from brinell.attacks.catalogue import MADRY, MM_PAPER, MM_STEP
from brinell.core.attack import AnyAttack, Attack, Requires
from brinell.engine.attack_batch import KEEP, check_trainable
from brinell.errors import PlanError, one_of
from brinell.ops.losses import LOSSES

# Ten steps of a quarter of the radius: 2/255 of 8/255, as in Madry et al. 2018 (seven steps) and Rice et al. 2020.
PGD_STEPS, PGD_STEP = 10, 0.25
# Zhang et al. 2019: 1/lambda = 6, ten steps of 0.007 in a ball of 0.031, from a Gaussian start of deviation 0.001.
TRADES_BETA, TRADES_STEP, TRADES_START = 6.0, 0.007 / 0.031, 0.001
# Minimum-Margin: three targets, 20 adaptive steps, or fixed steps of eps/10 (the paper's section 4.2; its code: 0.007).
MM_TARGETS, MM_ADAPTIVE = 3, 20
# Wong et al. 2020: one step a quarter longer than the radius.
FAST_STEP = 1.25


@dataclass(frozen=True)
class Method:
    """An adversarial training method.

    `attack` makes the adversarial points (None: train on clean points). With `targets` above 0 the attack is run once
    for each of that many likeliest wrong classes t; of these points, each image uses the one with the largest z_t −
    z_y. With `beta` above 0 the loss is CE(clean) + beta · KL(clean ‖ adversarial), and the attack maximises this KL.
    `start` is the standard deviation of the Gaussian noise at the start (0: the attack's own start). `keep` says which
    iterate of the attack is used, "last" or "best".

    >>> Method("mine", PGD(steps=7)).cost(classes=10)
    (8, 8)
    """

    name: str
    attack: AnyAttack | None = None
    description: str = ""
    citation: str = ""
    targets: int = 0
    beta: float = 0.0
    start: float = 0.0
    keep: str = "last"

    def __post_init__(self) -> None:
        one_of("keep", self.keep, KEEP)
        if self.targets < 0 or self.beta < 0 or self.start < 0:
            got = f"targets {self.targets}, beta {self.beta}, start {self.start}"
            raise PlanError(
                expected="targets, beta and start of at least 0", got=got, remedy="Omit the negative value."
            )
        if self.attack is None:
            return
        check_trainable(self.attack)
        if LOSSES[self.attack.loss].targeted and not (self.targets or self.beta):
            raise PlanError(
                expected=f"targets of at least 1 for an attack on the {self.attack.loss} loss",
                got="targets=0",
                remedy="Write Method(name, attack, targets=3).",
            )

    def copies(self, classes: int) -> int:
        """Return how often the attack runs on every image in an epoch: once per target."""
        return max(1, min(self.targets, classes - 1))

    def cost(self, classes: int) -> tuple[int, int]:
        """Return the numbers of forward and backward passes per image and epoch, including the weight update."""
        updates = 2 if self.beta else 1
        if self.attack is None:
            return updates, updates
        copies, asked = self.copies(classes), self.attack.queries - 1
        backwards = copies * asked if self.attack.requires is Requires.GRAD else 0
        clean = int(self.targets > 0 or self.beta > 0) + (copies if copies > 1 else 0)
        kept = copies if self.keep == "best" else 0
        return clean + copies * asked + kept + updates, backwards + updates

    def to_json(self) -> dict[str, Any]:
        """Return all parameters of the method and its attack as a dict."""
        body: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "attack"}
        if self.attack is not None:
            numbers = {f.name: getattr(self.attack, f.name) for f in fields(self.attack)}  # type: ignore[arg-type]
            body["attack"] = {"type": type(self.attack).__name__, **numbers}
        return body


_ALL = [
    Method("standard", None, "Cross-entropy on clean images"),
    Method(
        "pgd",
        PGD(PGD_STEPS, PGD_STEP),
        "PGD adversarial training: 10 steps of eps/4 on cross-entropy, from a uniform start",
        MADRY,
    ),
    Method(
        "cw",
        PGD(PGD_STEPS, PGD_STEP, "margin"),
        "CW adversarial training: 10 steps of eps/4 on the margin max z_i − z_y, from a uniform start",
        f"{MM_PAPER}, Table 3; the loss of Carlini & Wagner 2017",
    ),
    Method(
        "trades",
        PGD(PGD_STEPS, TRADES_STEP),
        "TRADES: cross-entropy on clean images plus 6 times KL(clean ‖ adversarial)",
        "Zhang et al. 2019, Theoretically principled trade-off between robustness and accuracy",
        beta=TRADES_BETA,
        start=TRADES_START,
    ),
    Method(
        "mm3",
        APGD(MM_ADAPTIVE, "minimum-margin"),
        "MM3-AT: 20 adaptive minimum-margin steps towards each of the 3 likeliest wrong classes",
        MM_PAPER,
        targets=MM_TARGETS,
    ),
    Method(
        "mm3-f10",
        PGD(10, MM_STEP, "minimum-margin"),
        "MM3-AT-F10: 10 fixed minimum-margin steps of eps/10 towards each of 3 classes",
        MM_PAPER,
        targets=MM_TARGETS,
    ),
    Method(
        "mm3-f20",
        PGD(20, MM_STEP, "minimum-margin"),
        "MM3-AT-F20: 20 fixed minimum-margin steps of eps/10 towards each of 3 classes",
        MM_PAPER,
        targets=MM_TARGETS,
    ),
    Method(
        "fgsm-rs",
        PGD(1, FAST_STEP),
        "Fast adversarial training: one step of 1.25 eps from a uniform start",
        "Wong, Rice & Kolter 2020, Fast is better than free",
    ),
]
METHODS: dict[str, Method] = {m.name: m for m in _ALL}


def as_method(chosen: Any) -> Method:
    """Return the method with a built-in name, the given Method, or a method that trains with the given attack.

    >>> as_method(PGD(steps=3)).name, as_method("fgsm-rs").cost(classes=10)
    ('pgd-ce', (2, 2))
    """
    if isinstance(chosen, Method):
        return chosen
    if isinstance(chosen, str):
        return METHODS[one_of("a training method", chosen, METHODS)]
    if not isinstance(chosen, Attack):
        raise PlanError(
            expected="a Method, the name of a training method, or an attack",
            got=repr(chosen)[:80],
            remedy=f"Pass one of the names {', '.join(METHODS)}.",
        )
    targeted = LOSSES[chosen.loss].targeted
    # An attack without gradients proposes points and rejects some, so its last point means nothing.
    keep = "best" if chosen.requires is Requires.LOGITS else "last"
    return Method(chosen.name, chosen, targets=MM_TARGETS if targeted else 0, keep=keep)
