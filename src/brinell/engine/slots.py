"""The samples of a stage, the slots of samples under attack, and the micro-batches of slots that advance together."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from brinell.core.attack import Batch
from brinell.engine.best_so_far import Best
from brinell.ops.rowwise import concat, head, put, take

T = TypeVar("T")


@dataclass(frozen=True)
class Samples:
    """The samples of one stage on the device, with a radius per sample and a target class per sample and attempt.

    `targets` has one column per attempt (−1: no target). `attempts`, shape (samples, 2), holds each sample's first
    attempt number and its last plus one; None means all attempts. `batch.key` is the
    random key of each sample; the attempt is mixed in when the attempt begins.
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
        """Make samples from one tensor per field, with one row per sample."""
        return cls(Batch(x, y, key, targets[:, 0], start, id=id), eps, targets, attempts)

    def __len__(self) -> int:
        return len(self.eps)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.eps.device


@dataclass(frozen=True)
class Entry:
    """Samples that enter slots: their positions `at`, their attempts, and what the attack's first state needs."""

    at: Tensor
    attempt: Tensor
    live: Tensor
    batch: Batch
    eps: Tensor


@dataclass(frozen=True)
class Slots(Entry):
    """Slots, one row each: the attack's state and the sample's best point so far. `live` rows are still attacked."""

    state: Any
    best: Best


@dataclass(frozen=True)
class Outcome:
    """What the scheduler reads from slots whose attempts have ended: sample position, attempt and best point."""

    at: Tensor
    attempt: Tensor
    best: Best


Begin = Callable[[Entry], Slots]
"""A pure function that returns slots at the beginning of the attempts in an `Entry`."""


@dataclass(eq=False)
class MicroBatch:
    """Slots that the engine advances together; `busy` says which hold a sample. Methods take slot numbers `places`."""

    entry: InitVar[Entry]
    busy: list[bool]
    begin: Begin
    slots: Slots = field(init=False)

    def __post_init__(self, entry: Entry) -> None:
        self.slots = self.begin(entry)

    def running(self) -> list[bool]:
        """Return, per slot, whether its attempt still runs."""
        live: list[bool] = self.slots.live.tolist()
        return live

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        """Return a copy of the rows `places` of the dataclass that the function `of` returns for the slots."""
        return take(of(self.slots), self._index(places))

    def enter(self, places: list[int], entry: Entry) -> None:
        """Begin the attempts in `entry` in the slots `places`."""
        self.write(places, self.begin(entry))

    def write(self, places: list[int], new: Slots) -> None:
        """Overwrite the slots `places` with the slots `new`."""
        self.slots = put(self.slots, self._index(places), new)

    def add(self, entry: Entry) -> None:
        """Begin the attempts in `entry` in empty slots, and in new slots where these are too few."""
        new, n = self.begin(entry), len(entry.eps)
        places = [i for i, busy in enumerate(self.busy) if not busy][:n]
        if places:
            self.write(places, head(new, len(places)))
        for i in places:
            self.busy[i] = True
        if len(places) < n:
            rest = torch.arange(len(places), n, device=new.at.device)
            self.slots = concat([self.slots, take(new, rest)])
            self.busy += [True] * len(rest)

    def shrink(self, need: int) -> None:
        """Drop empty slots until `need` slots remain."""
        used = [i for i, b in enumerate(self.busy) if b]
        if need < len(self.busy) and used:
            spare = [i for i, b in enumerate(self.busy) if not b][: need - len(used)]
            self._keep(used + spare)

    def _keep(self, places: list[int]) -> None:
        self.slots = take(self.slots, self._index(places))
        self.busy = [self.busy[i] for i in places]

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, device=self.slots.at.device, dtype=torch.long)
