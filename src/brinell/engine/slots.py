"""The samples of a stage, and the slots that hold those under attack: one row per sample or slot."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import Batch
from brinell.engine.best_so_far import Best


@dataclass(frozen=True)
class Samples:
    """The samples of one stage on the device, with the radius of each and the target class of every attempt.

    `targets` has one column per attempt (−1: no target). `attempts` (n, 2) holds each sample's first attempt and the
    one it stops before; None means all. `batch.key` is the noise key before the attempt is folded in.
    """

    batch: Batch
    eps: Tensor
    targets: Tensor
    attempts: Tensor | None = None

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        eps: Tensor,
        targets: Tensor,
        start: Tensor | None = None,
        id: Tensor | None = None,
        attempts: Tensor | None = None,
    ) -> "Samples":
        """Return the samples with these rows."""
        return cls(Batch(x, y, key, targets[:, 0], start, id=id), eps, targets, attempts)

    def __len__(self) -> int:
        return len(self.eps)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.eps.device


@dataclass(frozen=True)
class Entry:
    """Samples that enter slots: their positions, their attempts, and all that the attack's first states depend on."""

    at: Tensor
    attempt: Tensor
    live: Tensor
    batch: Batch
    eps: Tensor


@dataclass(frozen=True)
class Slots(Entry):
    """Slots under attack: the attack's state and the best point so far of every sample. `live` rows still run."""

    state: Any
    best: Best

    @property
    def device(self) -> torch.device:
        """The device of the slots."""
        return self.at.device

    @property
    def outcome(self) -> "Outcome":
        """What the scheduler needs of a finished sample: a small part of a slot."""
        return Outcome(self.at, self.attempt, self.best)


@dataclass(frozen=True)
class Outcome:
    """The samples of some slots, the attempts they were in, and their best points."""

    at: Tensor
    attempt: Tensor
    best: Best
