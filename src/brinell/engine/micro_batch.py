"""The slots that go through the model together."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from brinell.engine.slots import Entry, Slots
from brinell.ops.rowwise import put, take

T = TypeVar("T")
Begin = Callable[[Entry], Slots]
"""Return slots at the beginning of their attempts; a pure function."""


@dataclass(eq=False)
class MicroBatch:
    """Some slots and which of them hold a sample (`busy`). A list of ints names slots by their positions here."""

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
        """Overwrite some slots with samples that are under way."""
        self.slots = put(self.slots, self._index(places), new)

    def reset_ages(self, places: list[int]) -> None:
        """Note that some slots begin other samples or attempts; only accelerators count the ages of attempts."""

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
        return torch.tensor(places, device=self.slots.device)
