"""The single attacks of AutoAttack, with their constructors and the method `perturb`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import APGD, FAB, Square
from brinell.compat.autoattack.transcript import Log
from brinell.compat.functions import as_classifier, predictions, refuse_unless
from brinell.core.plan import Eot, Restarts, Stage, Targets, stage
from brinell.core.threat import threat

# What FAB takes without a radius (Croce & Hein 2020, code).
RADII = {"Linf": 0.3, "L2": 1.0, "L1": 5.0}


def _perturb(of: Any, part: Stage, x: Tensor, y: Tensor | None, eps: float | None, targeted: bool = False) -> Tensor:
    """Return adversarial images of the correctly classified samples; all other samples stay as they are."""
    refuse_unless(eps is not None, "eps, the radius of the attack", "eps=None", "Write e.g. eps=8 / 255.")
    model = as_classifier(of.predict, of.device)
    predicted = predictions(model, x)
    labels = predicted if y is None else y.to(predicted.device)
    x_adv = part(model, x, labels, threat(of.norm, eps or 0.0), seed=of.seed, targeted=targeted)
    attacked = (predicted != labels) if targeted else (predicted == labels)
    kept = torch.where(attacked.to(x.device).view(-1, *[1] * (x.ndim - 1)), x_adv, x)
    if of.verbose:
        robust = float((predictions(model, kept) == labels).float().mean())
        Log(True, None)(f"{part.name}: {'reached' if targeted else 'robust accuracy'} {robust:.2%}")
    return kept


@dataclass(slots=True)
class APGDAttack:
    """APGD with the constructor of AutoAttack; `perturb(x, y)` returns one image per sample.

    Differences: every returned adversarial is verified; the noise depends on the seed and the sample only. Unknown
    attributes raise.
    """

    predict: Any
    n_iter: int = 100
    norm: str = "Linf"
    n_restarts: int = 1
    eps: float | None = None
    seed: int = 0
    loss: str = "ce"
    eot_iter: int = 1
    rho: float = 0.75
    topk: float | None = None
    verbose: bool = False
    device: Any = None
    use_largereps: bool = False
    is_tf_model: bool = False

    def perturb(self, x: Tensor, y: Tensor | None = None, best_loss: bool = False, x_init: Any = None) -> Tensor:
        """Return adversarial images; samples that stay correct or were misclassified are returned unchanged."""
        _refuse_options(self, best_loss, x_init)
        return _perturb(self, _apgd(self, self.loss), x, y, self.eps)


@dataclass(slots=True)
class APGDAttack_targeted:  # noqa: N801
    """APGD towards the likeliest wrong classes, with the constructor of AutoAttack."""

    predict: Any
    n_iter: int = 100
    norm: str = "Linf"
    n_restarts: int = 1
    eps: float | None = None
    seed: int = 0
    eot_iter: int = 1
    rho: float = 0.75
    topk: float | None = None
    n_target_classes: int = 9
    verbose: bool = False
    device: Any = None
    use_largereps: bool = False
    is_tf_model: bool = False

    def perturb(self, x: Tensor, y: Tensor | None = None, x_init: Any = None) -> Tensor:
        """Return adversarial images; samples that stay correct or were misclassified are returned unchanged."""
        _refuse_options(self, False, x_init)
        return _perturb(self, Targets(_apgd(self, "dlr-targeted"), self.n_target_classes), x, y, self.eps)


@dataclass(slots=True)
class SquareAttack:
    """Square with the constructor of AutoAttack; without labels it attacks the predictions."""

    predict: Any
    norm: str = "Linf"
    n_queries: int = 5000
    eps: float | None = None
    p_init: float = 0.8
    n_restarts: int = 1
    seed: int = 0
    verbose: bool = False
    targeted: bool = False
    loss: str = "margin"
    resc_schedule: bool = True
    device: Any = None
    is_tf_model: bool = False

    def perturb(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return adversarial images; with `targeted`, `y` are the classes that the model shall predict."""
        _refuse_options(self)
        refuse_unless(self.loss in ("margin", "ce"), "the loss 'margin' or 'ce'", self.loss, "Write loss='margin'.")
        refuse_unless(
            not (self.resc_schedule and self.n_queries != 10_000),
            "resc_schedule=False, the schedule of AutoAttack, unless n_queries is 10,000",
            f"resc_schedule=True with n_queries={self.n_queries}",
            "Write SquareAttack(…, resc_schedule=False).",
        )
        refuse_unless(y is not None or not self.targeted, "target classes y", "y=None", "Pass y, one class per sample.")
        part = Restarts(Square(self.n_queries, self.p_init, self.loss), self.n_restarts)
        return _perturb(self, part, x, y, self.eps, self.targeted)


@dataclass(slots=True)
class FABAttack_PT:  # noqa: N801
    """FAB with the constructor of AutoAttack; `targeted` attacks `n_target_classes` likeliest wrong classes in turn."""

    predict: Any
    norm: str = "Linf"
    n_restarts: int = 1
    n_iter: int = 100
    eps: float | None = None
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    loss_fn: Any = None
    verbose: bool = False
    seed: int = 0
    targeted: bool = False
    device: Any = None
    n_target_classes: int = 9

    def perturb(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return the nearest adversarial images within eps; all other samples are returned unchanged."""
        refuse_unless(self.loss_fn is None, "loss_fn=None", repr(self.loss_fn), "FAB follows the logits: leave it out.")
        part = stage(FAB(self.n_iter, self.targeted, self.alpha_max, self.eta, self.beta))
        part = Targets(part, self.n_target_classes) if self.targeted else part
        return _perturb(
            self, Restarts(part, self.n_restarts), x, y, RADII.get(self.norm) if self.eps is None else self.eps
        )


def _apgd(of: APGDAttack | APGDAttack_targeted, loss: str) -> Stage:
    large = of.use_largereps and of.norm == "L1"
    return Eot(Restarts(APGD(of.n_iter, loss, of.rho, larger_eps=large), of.n_restarts), of.eot_iter)


def _refuse_options(of: Any, best_loss: bool = False, x_init: Any = None) -> None:
    refuse_unless(not of.is_tf_model, "a torch model", "is_tf_model=True", "Use brinell.models.from_tensorflow.")
    refuse_unless(getattr(of, "topk", None) is None, "topk=None", "a value of topk", "Leave it out.")
    refuse_unless(
        not best_loss and x_init is None,
        "perturb without best_loss and x_init",
        "one of them",
        "Use brinell.attack(model, (x, y), threat, APGD(), start=x_init, early_exit=False): its rows hold the loss.",
    )
