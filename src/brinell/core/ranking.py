"""The order in which a targeted attack tries its target classes."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.threat import Threat
from brinell.errors import PlanError
from brinell.ops.losses import likeliest_wrong

CANDIDATES = 100  # Melamed et al. 2024 rank the 100 likeliest classes of ImageNet


@runtime_checkable
class TargetRanking(Protocol):
    """A rule that ranks classes at one point: by logits, at the clean input or where an attack ends, or by distance."""

    @property
    def attack(self) -> AnyAttack | None:
        """The reference attack; None if the classes are ranked at the clean input."""

    @property
    def needs_gradients(self) -> bool:
        """Whether ranking needs gradients of the model."""

    def passes(self, draws: int) -> tuple[int, int]:
        """Return the numbers of forward and backward passes per sample that ranking costs; a query takes `draws`."""

    def threat(self, threat: Threat) -> Threat:
        """Return the threat under which the reference attack runs in an evaluation of `threat`."""


@dataclass(frozen=True)
class LogitRanking:
    """The ranking by the logits of the clean input, at no extra cost: the evaluation has computed these logits.

    >>> LogitRanking().passes(draws=20)
    (0, 0)
    """

    attack = None
    needs_gradients = False

    def passes(self, draws: int) -> tuple[int, int]:
        return 0, 0

    def threat(self, threat: Threat) -> Threat:
        return threat


@dataclass(frozen=True)
class AttackRanking:
    """The ranking by the logits at the last iterate of an attack in a ball of `radius` (None: the threat's eps).

    Reference: Gao et al. 2022, sec. 3.2 and appendix D.

    >>> from brinell.attacks import PGD
    >>> AttackRanking(PGD(steps=20), radius=6 / 255).passes(draws=1)
    (21, 20)
    """

    attack: AnyAttack
    radius: float | None = None
    needs_gradients = True

    def passes(self, draws: int) -> tuple[int, int]:
        """Return the numbers of (forward, backward) passes per sample; the last iterate needs no backward pass."""
        return self.attack.queries * draws, (self.attack.queries - 1) * draws

    def threat(self, threat: Threat) -> Threat:
        return threat if self.radius is None else replace(threat, eps=self.radius, text=f"{self.radius:.6g}")


@dataclass(frozen=True)
class MaltRanking:
    """The ranking by the distance at which a linear model would meet each class: (z_y − z_j) / ‖∇(z_y − z_j)‖.

    The norm is dual to the threat's norm, the point is the clean input. The `candidates` likeliest wrong classes are
    ranked by distance, nearest first; the others follow by logit. Cost: one forward and one backward pass per
    candidate. Reference: Melamed et al. 2024, MALT: mesoscopic almost linearity targeting (100 candidates).

    >>> MaltRanking(candidates=9).passes(draws=1)
    (9, 9)
    """

    candidates: int = CANDIDATES
    attack = None
    needs_gradients = True
    name = "malt"

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise PlanError(
                expected="at least 1 candidate class",
                got=f"candidates = {self.candidates}",
                remedy=f"Leave candidates out for the default of {CANDIDATES}.",
            )

    def passes(self, draws: int) -> tuple[int, int]:
        return self.candidates * draws, self.candidates * draws

    def threat(self, threat: Threat) -> Threat:
        return threat

    def fitted(self, classes: int) -> "MaltRanking":
        """Return the ranking for a model with this number of classes: at most all wrong classes are candidates."""
        return replace(self, candidates=min(self.candidates, classes - 1))

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest of a Run stores about the ranking."""
        return {"method": self.name, "candidates": self.candidates}


def rank_by_distance(logits: Tensor, candidates: Tensor, margins: Tensor, duals: Tensor) -> Tensor:
    """Return scores (b, classes) whose descending order puts near candidates first, then the other classes by logit.

    `candidates` (b, k) are classes j, `margins` are z_y − z_j and `duals` the dual norms of its gradient. Where the
    gradient is zero the class is out of reach, unless its logit is the larger one already.

    >>> one = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[1, 2]])
    >>> rank_by_distance(*one, torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])).tolist()
    [[1.0, 2.0, 3.0, 0.0]]
    """
    far = torch.where(margins > 0, torch.inf, -torch.inf)
    distance = torch.where(duals > 0, margins / duals, far)
    nearest = candidates.gather(1, distance.argsort(dim=1, stable=True))
    by_logit = logits.argsort(dim=1, descending=True, stable=True)
    ranked = torch.zeros_like(by_logit).scatter(1, candidates, 1).gather(1, by_logit)
    rest = by_logit.gather(1, ranked.argsort(dim=1, stable=True))[:, : logits.shape[1] - candidates.shape[1]]
    scores = torch.arange(logits.shape[1], dtype=logits.dtype, device=logits.device).flip(0)
    return torch.zeros_like(logits).scatter(1, torch.cat([nearest, rest], 1), scores.expand_as(logits))


def rank_targets(logits: Tensor, y: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """Return each sample's class at every rank, (b, len(ranks)); rank 1 is the true class. No ranks: a column of −1.

    >>> rank_targets(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([0]), (2, 3))
    tensor([[1, 2]])
    """
    if not ranks:
        return torch.full((len(y), 1), -1, device=y.device, dtype=torch.long)
    return likeliest_wrong(logits, y, max(ranks) - 1)[:, [r - 2 for r in ranks]]
