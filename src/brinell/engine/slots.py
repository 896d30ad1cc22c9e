"""What is in flight: samples, their rows, the attack's state and the records, one row per slot; how it begins."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import Batch
from brinell.engine.best_so_far import Best


@dataclass(frozen=True)
class Work:
    """The samples of one stage on the device: a row each, plus the target class of every leg (columns; −1: none).

    `id` are the samples' ids, for classifiers that differ by sample. `attempts` (n, 2) are each sample's first attempt
    and the one it stops before, where those are not all of them.
    """

    x: Tensor
    y: Tensor
    key: Tensor
    eps: Tensor
    targets: Tensor
    start: Tensor | None = None
    id: Tensor | None = None
    attempts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Entry:
    """What samples begin with in their slots: all that the first states of an attack are made of.

    `seed` is what a sample's branches know of what came before them, `which` the branch that begins (−1: none), where
    the attack has branches.
    """

    at: Tensor
    attempt: Tensor
    live: Tensor
    x: Tensor
    y: Tensor
    key: Tensor
    eps: Tensor
    target: Tensor
    start: Tensor | None = None
    id: Tensor | None = None
    seed: Any = None
    which: Tensor | None = None


@dataclass(frozen=True)
class Slots:
    """Which sample is in every slot, which of its legs, whether it is still running; and the attack's own state."""

    at: Tensor
    attempt: Tensor
    live: Tensor
    rows: Batch
    eps: Tensor
    state: Any
    record: Best

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.at.device

    @property
    def outcome(self) -> "Outcome":
        """What is asked for when they end: the rest of a slot is many times as much."""
        return Outcome(self.at, self.attempt, self.record)


@dataclass(frozen=True)
class Outcome:
    """Of some slots: the samples in them, which of their legs it was, and the records."""

    at: Tensor
    attempt: Tensor
    record: Best
