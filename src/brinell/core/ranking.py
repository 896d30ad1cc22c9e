"""The order in which a targeted attack tries its target classes."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.threat import Threat
from brinell.ops.losses import likeliest_wrong


@runtime_checkable
class TargetRanking(Protocol):
    """A rule that ranks classes by their logits at one point: the clean input or a reference attack's last iterate."""

    @property
    def attack(self) -> AnyAttack | None:
        """The reference attack; None if the logits of the clean input rank the classes."""

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

    def passes(self, draws: int) -> tuple[int, int]:
        """Return the numbers of (forward, backward) passes per sample; the last iterate needs no backward pass."""
        return self.attack.queries * draws, (self.attack.queries - 1) * draws

    def threat(self, threat: Threat) -> Threat:
        return threat if self.radius is None else replace(threat, eps=self.radius, text=f"{self.radius:.6g}")


def rank_targets(logits: Tensor, y: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """Return each sample's class at every rank, (b, len(ranks)); rank 1 is the true class. No ranks: a column of −1.

    >>> rank_targets(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([0]), (2, 3))
    tensor([[1, 2]])
    """
    if not ranks:
        return torch.full((len(y), 1), -1, device=y.device)
    return likeliest_wrong(logits, y, max(ranks) - 1)[:, [r - 2 for r in ranks]]
