"""The samples of a stage, and the slots that hold those under attack, which go through the model in micro-batches."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from brinell.core.attack import Batch
from brinell.engine.best_so_far import Best
from brinell.ops.rowwise import put, take

T = TypeVar("T")


@dataclass(frozen=True)
class Samples:
    """The samples of one stage on the device, with the radius of each and the target class of every attempt.

    `targets` has one column per attempt (−1: no target). `attempts` (samples, 2) holds each sample's first attempt and
    the one it stops before; None means all. `batch.key` is the noise key before the attempt is folded in.
    """

    batch: Batch
    eps: Tensor
    targets: Tensor
    attempts: Tensor | None = None

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, key: Tensor, eps: Tensor, targets: Tensor,
        start: Tensor | None = None, id: Tensor | None = None, attempts: Tensor | None = None,
    ) -> "Samples":  # fmt: skip
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


@dataclass(frozen=True)
class Outcome:
    """What the scheduler needs of finished samples: a small part of their slots."""

    at: Tensor
    attempt: Tensor
    best: Best


Begin = Callable[[Entry], Slots]
"""Return slots at the beginning of their attempts; a pure function."""


@dataclass(eq=False)
class MicroBatch:
    """Some slots and which of them hold a sample (`busy`). Its methods take lists of slots' positions in it."""

    entry: InitVar[Entry]
    busy: list[bool]
    begin: Begin
    slots: Slots = field(init=False)

    def __post_init__(self, entry: Entry) -> None:
        self.slots = self.begin(entry)

    def running(self) -> list[bool]:
        """Return which slots still run."""
        live: list[bool] = self.slots.live.tolist()
        return live

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        """Return a copy of a part of some slots."""
        return take(of(self.slots), self._index(places))

    def enter(self, places: list[int], entry: Entry) -> None:
        """Begin other samples in some slots."""
        self.write(places, self.begin(entry))

    def write(self, places: list[int], new: Slots) -> None:
        """Overwrite some slots with other samples or attempts."""
        self.slots = put(self.slots, self._index(places), new)

    def shrink(self, block: int) -> None:
        """Drop empty slots in whole blocks."""
        used = [i for i, b in enumerate(self.busy) if b]
        need = -(-max(len(used), 1) // block) * block
        if need < len(self.busy) and used:
            spare = [i for i, b in enumerate(self.busy) if not b][: need - len(used)]
            self._keep(used + spare)

    def _keep(self, places: list[int]) -> None:
        self.slots = take(self.slots, self._index(places))
        self.busy = [self.busy[i] for i in places]

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, device=self.slots.at.device)
