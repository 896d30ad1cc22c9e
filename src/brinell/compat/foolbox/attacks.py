"""Attacks under the names of Foolbox, called as there: `attack(fmodel, x, criterion, epsilons=…)`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from brinell import attacks as ours
from brinell.compat.foolbox.criteria import labels_of
from brinell.compat.foolbox.models import PyTorchModel, like, plain
from brinell.compat.functions import predictions, refuse_unless
from brinell.compat.missing import refuse_name
from brinell.core.attack import AnyAttack
from brinell.core.plan import Restarts
from brinell.core.threat import Threat, norm_name, parse_eps, threat
from brinell.ops.norms import SIZES


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
        self, model: PyTorchModel, inputs: Any, criterion: Any, *, epsilons: Any, seed: int = 0
    ) -> tuple[Any, Any, Any]:
        result, inputs = like(inputs), plain(inputs)
        several = isinstance(epsilons, Iterable) and getattr(epsilons, "ndim", 1) > 0
        radii = [self._radius(e, inputs, model.width) for e in (epsilons if several else [epsilons])]
        each = [self._at(model, inputs, criterion, e, seed) for e in radii]
        if not several:
            raw, clipped, hit = each[0]
            return result(raw), result(clipped), result(hit)
        raws, clips, hits = zip(*each, strict=True)
        return list(map(result, raws)), list(map(result, clips)), result(torch.stack(hits))

    def _radius(self, eps: Any, x: Tensor, width: float) -> float | None:
        """Return a radius in the bounds of the model; where the ball covers the box, the largest one that does not."""
        refuse_unless(
            eps is not None or self.part(1.0).minimum_norm, "epsilons, the radii of this attack", "epsilons=None",
            "Write epsilons=[0.03], or use an attack of the smallest distance such as L2FMNAttack.",
        )  # fmt: skip
        if eps is None:
            return None
        size, value = SIZES[norm_name(self.norm)], parse_eps(eps)
        refuse_unless(value >= 0, "epsilons of at least 0", str(eps), "Write epsilons=[0.03].")
        return min(value, math.nextafter(size.diameter(x[0].numel()), 0) * (1 if size.counts else width))

    def _at(self, model: PyTorchModel, x: Tensor, criterion: Any, eps: float | None, seed: int) -> tuple[Any, Any, Any]:
        labels, targeted = labels_of(criterion)
        kind, count = norm_name(self.norm), self.restarts
        scale = 1.0 if SIZES[kind].counts else 1 / model.width
        part = self.part(eps or 1.0)
        u = model.inwards(x)
        found = near = u
        if eps != 0 or part.minimum_norm:
            wide = threat(kind, "inf" if part.minimum_norm or eps is None else eps * scale)
            found = Restarts(part, count)(model.classifier, u, labels, wide, seed=seed, targeted=targeted)
            near = _clipped(u, found, threat(kind, eps * scale)) if eps and part.minimum_norm else found
        near = u if eps == 0 else near
        hit = predictions(model.classifier, near) == labels.cpu()
        raw, clipped = (_moved(model, x, u, v) for v in (found, near))
        return raw, clipped, (hit if targeted else ~hit).to(x.device)


def _clipped(u: Tensor, found: Tensor, limit: Threat) -> Tensor:
    """Return the points found, projected to the ball where they lie outside."""
    ball = limit.ball(torch.arange(len(u), device="cpu"), u.device)
    return torch.where(_rows(ball.contains(u, found), u), found, ball.project(u, found))


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

__all__ = [k for k, v in list(globals().items()) if k[0] != "_" and isinstance(v, type) and issubclass(v, _Attack)]
# What Foolbox has and this module has not, by what to use.
INSTEAD = {
    "HopSkipJumpAttack": "brinell.attacks.HopSkipJump",
    "BoundaryAttack": "brinell.attacks.HopSkipJump",
    "SaltAndPepperNoiseAttack": "brinell.attacks.RandomSearch under brinell.L0",
    "L2BrendelBethgeAttack": "L2FMNAttack",
    "LinfinityBrendelBethgeAttack": "LInfFMNAttack",
    "L1BrendelBethgeAttack": "L1FMNAttack",
    "L0BrendelBethgeAttack": "L0FMNAttack",
    "LinfMomentumIterativeFastGradientMethod": "brinell.attacks.MIFGSM",
    "NewtonFoolAttack": "L2DeepFoolAttack",
}


def __getattr__(name: str) -> Any:
    """Raise that Foolbox's attack is missing here; the remedy names what to use."""
    refuse_name(__name__, name, __all__, INSTEAD, "See brinell.attacks.")
