"""Models, attacks and criteria under the names of Foolbox: `from brinell.compat import foolbox as fb`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from brinell import attacks as ours
from brinell.compat.functions import as_classifier, predictions, refuse_unless
from brinell.core.attack import AnyAttack
from brinell.core.plan import Restarts
from brinell.core.threat import norm_name, threat
from brinell.errors import PlanError, did_you_mean
from brinell.ops.norms import SIZES

NORMALISES = ("mean", "std", "axis", "flip_axis")


class _InBounds(nn.Module):
    """A module for inputs in [0, 1] around a model for inputs in other bounds, with its preprocessing."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any, low: float, high: float, preprocessing: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.low, self.high, self.flip = model, low, high, preprocessing.get("flip_axis")
        for name in ("mean", "std"):
            value = torch.as_tensor(preprocessing.get(name, float(name == "std")), dtype=torch.float32, device="cpu")
            self.register_buffer(name, value.reshape(-1, *[1] * (-1 - preprocessing.get("axis", -1))))

    def forward(self, x: Tensor) -> Tensor:
        z = self.low + (self.high - self.low) * x
        z = z if self.flip is None else z.flip(self.flip)
        out: Tensor = self.model((z - self.mean) / self.std)
        return out


class PyTorchModel:
    """A torch model with the bounds of its inputs and their normalisation; called, it returns logits."""

    def __init__(
        self,
        model: Any,
        bounds: tuple[float, float],
        device: Any = None,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(preprocessing or {})
        unknown = [name for name in given if name not in NORMALISES]
        refuse_unless(
            not unknown, f"preprocessing with {', '.join(NORMALISES)}", ", ".join(unknown), "Put it into the model."
        )
        vectors = any(getattr(given.get(k), "__len__", None) for k in ("mean", "std"))
        refuse_unless(
            not vectors or given.get("axis", 0) < 0,
            "a negative axis for one number per channel",
            f"axis={given.get('axis')}",
            "Write dict(mean=[…], std=[…], axis=-3).",
        )
        refuse_unless(bounds[0] < bounds[1], "bounds from low to high", str(bounds), "Write bounds=(0, 1).")
        self.bounds = (float(bounds[0]), float(bounds[1]))
        self.classifier = as_classifier(_InBounds(model, *self.bounds, given).eval(), device)

    @property
    def width(self) -> float:
        """The difference between the largest and the smallest value of an input."""
        return self.bounds[1] - self.bounds[0]

    def inwards(self, x: Tensor) -> Tensor:
        """Return inputs moved from the bounds to [0, 1]."""
        return x if self.bounds == (0.0, 1.0) else (x - self.bounds[0]) / self.width

    def outwards(self, u: Tensor) -> Tensor:
        """Return inputs moved from [0, 1] to the bounds."""
        return u if self.bounds == (0.0, 1.0) else self.bounds[0] + self.width * u

    def __call__(self, x: Tensor) -> Tensor:
        return self.classifier.forward(self.inwards(x)).logits


@dataclass(frozen=True)
class Misclassification:
    """The criterion that any class but the label is predicted."""

    labels: Tensor


@dataclass(frozen=True)
class TargetedMisclassification:
    """The criterion that the target class is predicted."""

    target_classes: Tensor


def accuracy(fmodel: PyTorchModel, inputs: Tensor, labels: Tensor) -> float:
    """Return the share of inputs that the model classifies as their labels."""
    return float((predictions(fmodel.classifier, fmodel.inwards(inputs)) == labels.cpu()).float().mean())


@dataclass(frozen=True)
class _Attack:
    """An attack: `attack(fmodel, x, criterion, epsilons=…)` returns (raw, clipped, is_adv), one each per epsilon."""

    norm: ClassVar[str] = "Linf"
    restarts: ClassVar[int] = 1

    def part(self, eps: float) -> AnyAttack:
        """Return the attack of Brinell for a radius."""
        raise NotImplementedError

    def repeat(self, times: int) -> "_Repeated":
        """Return the attack with restarts."""
        return _Repeated(self, times)

    def __call__(
        self, model: PyTorchModel, inputs: Tensor, criterion: Any, *, epsilons: Any, seed: int = 0
    ) -> tuple[Any, Any, Any]:
        several = isinstance(epsilons, Sequence)
        each = [self._at(model, inputs, criterion, e, seed) for e in (epsilons if several else [epsilons])]
        if not several:
            return each[0]
        raw, clipped, hit = zip(*each, strict=True)
        return list(raw), list(clipped), torch.stack(hit)

    def _at(self, model: PyTorchModel, x: Tensor, criterion: Any, eps: float | None, seed: int) -> tuple[Any, Any, Any]:
        labels, targeted = _labels(criterion)
        kind, count = norm_name(self.norm), self.restarts
        scale = 1.0 if SIZES[kind].counts else 1 / model.width
        part = self.part(1.0 if eps is None else eps)
        refuse_unless(
            eps is not None or part.minimum_norm, "epsilons, the radii of this attack", "epsilons=None",
            "Write epsilons=[0.03], or use an attack of the smallest distance such as L2FMNAttack.",
        )  # fmt: skip
        u = model.inwards(x)
        wide = threat(kind, "inf" if part.minimum_norm or eps is None else eps * scale)
        found = Restarts(part, count)(model.classifier, u, labels, wide, seed=seed, targeted=targeted)
        near = found
        if part.minimum_norm and eps is not None:
            ball = threat(kind, eps * scale).ball(torch.arange(len(u), device="cpu"), u.device)
            near = torch.where(_rows(ball.contains(u, found), u), found, ball.project(u, found))
        hit = predictions(model.classifier, near) == labels.cpu()
        raw, clipped = (_moved(model, x, u, v) for v in (found, near))
        return raw, clipped, (hit if targeted else ~hit).to(x.device)


def _labels(criterion: Any) -> tuple[Tensor, bool]:
    if isinstance(criterion, TargetedMisclassification):
        return criterion.target_classes, True
    if isinstance(criterion, Misclassification | Tensor):
        return (criterion if isinstance(criterion, Tensor) else criterion.labels), False
    raise PlanError(
        expected="labels, Misclassification or TargetedMisclassification",
        got=type(criterion).__name__,
        remedy="For another goal write a brinell.core.criterion.Criterion.",
    )


def _rows(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.ndim - 1))


def _moved(model: PyTorchModel, x: Tensor, u: Tensor, found: Tensor) -> Tensor:
    """Return the points in the bounds of the model; samples that did not move stay as they are, bit for bit."""
    return torch.where(_rows((found != u).flatten(1).any(1), x), model.outwards(found).to(x), x)


@dataclass(frozen=True)
class _Repeated(_Attack):
    """An attack with restarts, until one succeeds."""

    attack: _Attack
    times: int

    @property
    def norm(self) -> str:  # type: ignore[override]
        return self.attack.norm

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self.times * self.attack.restarts

    def part(self, eps: float) -> AnyAttack:
        return self.attack.part(eps)


@dataclass(frozen=True, kw_only=True)
class LinfProjectedGradientDescentAttack(_Attack):
    """PGD in Linf; unlike in Foolbox every iterate counts, not only the last one."""

    rel_stepsize: float = 0.01 / 0.3
    abs_stepsize: float | None = None
    steps: int = 40
    random_start: bool = True

    def part(self, eps: float) -> AnyAttack:
        rel = self.rel_stepsize if self.abs_stepsize is None else self.abs_stepsize / eps
        return ours.PGD(self.steps, rel, random_start=self.random_start)


@dataclass(frozen=True, kw_only=True)
class L2ProjectedGradientDescentAttack(LinfProjectedGradientDescentAttack):
    """PGD in L2."""

    norm: ClassVar[str] = "L2"
    rel_stepsize: float = 0.025
    steps: int = 50


@dataclass(frozen=True, kw_only=True)
class L1ProjectedGradientDescentAttack(L2ProjectedGradientDescentAttack):
    """PGD in L1, with sparse steps (Tramèr & Boneh 2019) and exact projections instead of Foolbox's scaling."""

    norm: ClassVar[str] = "L1"


@dataclass(frozen=True, kw_only=True)
class LinfBasicIterativeAttack(LinfProjectedGradientDescentAttack):
    """PGD in Linf from the clean input."""

    rel_stepsize: float = 0.2
    steps: int = 10
    random_start: bool = False


@dataclass(frozen=True, kw_only=True)
class L2BasicIterativeAttack(LinfBasicIterativeAttack):
    """PGD in L2 from the clean input."""

    norm: ClassVar[str] = "L2"


@dataclass(frozen=True, kw_only=True)
class LinfFastGradientAttack(_Attack):
    """One step of length epsilon in Linf."""

    random_start: bool = False

    def part(self, eps: float) -> AnyAttack:
        return ours.PGD(1, 1.0) if self.random_start else ours.FGSM()


@dataclass(frozen=True, kw_only=True)
class L2FastGradientAttack(LinfFastGradientAttack):
    """One step of length epsilon in L2."""

    norm: ClassVar[str] = "L2"


@dataclass(frozen=True, kw_only=True)
class L2DeepFoolAttack(_Attack):
    """DeepFool in L2. `candidates` is 10 or None: all classes are candidates."""

    norm: ClassVar[str] = "L2"
    steps: int = 50
    candidates: int | None = 10
    overshoot: float = 0.02
    loss: str = "logits"

    def part(self, eps: float) -> AnyAttack:
        refuse_unless(self.candidates in (10, None), "candidates=None", str(self.candidates), "Leave it out.")
        refuse_unless(self.loss == "logits", "loss='logits'", self.loss, "Leave it out.")
        return ours.DeepFool(self.steps, self.overshoot)


@dataclass(frozen=True, kw_only=True)
class LinfDeepFoolAttack(L2DeepFoolAttack):
    """DeepFool in Linf."""

    norm: ClassVar[str] = "Linf"


@dataclass(frozen=True, kw_only=True)
class L2CarliniWagnerAttack(_Attack):
    """Carlini and Wagner's attack in L2."""

    norm: ClassVar[str] = "L2"
    binary_search_steps: int = 9
    steps: int = 10_000
    stepsize: float = 0.01
    confidence: float = 0
    initial_const: float = 0.001
    abort_early: bool = True

    def part(self, eps: float) -> AnyAttack:
        _refuse_confidence(self)
        return ours.CW(self.steps, self.binary_search_steps, self.stepsize, self.initial_const)


@dataclass(frozen=True, kw_only=True)
class EADAttack(_Attack):
    """The elastic-net attack; distances are L1 (decision rule "L1")."""

    norm: ClassVar[str] = "L1"
    binary_search_steps: int = 9
    steps: int = 10_000
    initial_stepsize: float = 0.01
    confidence: float = 0.0
    initial_const: float = 0.001
    regularization: float = 0.01
    decision_rule: str = "L1"
    abort_early: bool = True

    def part(self, eps: float) -> AnyAttack:
        _refuse_confidence(self)
        refuse_unless(self.decision_rule == "L1", "decision_rule='L1'", self.decision_rule, "Write decision_rule='L1'.")
        rate, const = self.initial_stepsize, self.initial_const
        return ours.EAD(self.steps, self.binary_search_steps, rate, self.regularization, const)


def _refuse_confidence(attack: Any) -> None:
    refuse_unless(attack.confidence == 0, "confidence=0", str(attack.confidence), "Leave it out: use a fixed radius.")
    refuse_unless(attack.abort_early, "abort_early=True", "abort_early=False", "Leave it out.")


@dataclass(frozen=True, kw_only=True)
class DDNAttack(_Attack):
    """Decoupled direction and norm, in L2; the first radius is 1, as in the paper."""

    norm: ClassVar[str] = "L2"
    init_epsilon: float = 1.0
    steps: int = 100
    gamma: float = 0.05

    def part(self, eps: float) -> AnyAttack:
        refuse_unless(self.init_epsilon == 1.0, "init_epsilon=1.0", str(self.init_epsilon), "Leave it out.")
        return ours.DDN(self.steps, self.gamma)


@dataclass(frozen=True, kw_only=True)
class L2FMNAttack(_Attack):
    """The fast minimum-norm attack in L2."""

    norm: ClassVar[str] = "L2"
    steps: int = 100
    max_stepsize: float = 1.0
    min_stepsize: float | None = None
    gamma: float = 0.05
    init_attack: Any = None
    binary_search_steps: int = 10

    def part(self, eps: float) -> AnyAttack:
        fixed = (self.min_stepsize, self.gamma, self.init_attack, self.binary_search_steps)
        refuse_unless(
            fixed == (None, 0.05, None, 10), "steps and max_stepsize only", str(self), "Leave the others out."
        )
        return ours.FMN(self.steps, self.max_stepsize)


@dataclass(frozen=True, kw_only=True)
class LInfFMNAttack(L2FMNAttack):
    """The fast minimum-norm attack in Linf."""

    norm: ClassVar[str] = "Linf"


@dataclass(frozen=True, kw_only=True)
class L1FMNAttack(L2FMNAttack):
    """The fast minimum-norm attack in L1."""

    norm: ClassVar[str] = "L1"


@dataclass(frozen=True, kw_only=True)
class L0FMNAttack(L2FMNAttack):
    """The fast minimum-norm attack in L0."""

    norm: ClassVar[str] = "L0"


LinfPGD = PGD = LinfProjectedGradientDescentAttack
L2PGD = L2ProjectedGradientDescentAttack
L1PGD = L1ProjectedGradientDescentAttack
LinfFMNAttack = LInfFMNAttack
FGSM = LinfFastGradientAttack
FGM = L2FastGradientAttack
# As in Foolbox: fb.attacks.LinfPGD(), fb.criteria.Misclassification(y), fb.utils.accuracy(fmodel, x, y).
attacks = criteria = utils = sys.modules[__name__]

# What Foolbox has and this module has not, by what to use.
INSTEAD = {
    "HopSkipJumpAttack": "brinell.attacks.HopSkipJump",
    "BoundaryAttack": "brinell.attacks.HopSkipJump",
    "JAXModel": "brinell.models.from_jax",
    "TensorFlowModel": "brinell.models.from_tensorflow",
    "samples": 'brinell.data.load("demo", n)',
    "ExpectationOverTransformationWrapper": "brinell.Eot(attack, 20)",
}


def __getattr__(name: str) -> Any:
    """Raise a PlanError for a name of Foolbox that is missing here; its remedy names what to use."""
    if not name[0].isupper() and name not in INSTEAD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    known = [k for k, v in globals().items() if isinstance(v, type) and issubclass(v, _Attack) and k[0] != "_"]
    remedy = f"Use {INSTEAD[name]}." if name in INSTEAD else did_you_mean(name, known, "See brinell.attacks.")
    raise PlanError(expected=f"names among {', '.join(known)}", got=name, remedy=remedy)
