"""The scheduler: which samples are in the slots, which come next, and what happens when an attempt ends."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best
from brinell.engine.slots import Entry, MicroBatch, Outcome, Samples, Slots
from brinell.ops.rowwise import take

if TYPE_CHECKING:
    from brinell.engine.loop import Engine


@dataclass
class Scheduler:
    """A scheduler that keeps the slots full until every sample is finished.

    The attempts of a sample follow one another in its slot. When a sample is finished, the next sample takes its slot.
    """

    engine: "Engine"
    samples: Samples
    next_sample: int = 0
    finished: list[tuple[Tensor, Best]] = field(default_factory=list)

    def run(self) -> Iterator[tuple[Tensor, Best]]:
        """Attack all samples; whenever samples finish, yield their positions in `samples` and their best points."""
        step = self.engine.attack_step()
        count = self.slot_count()
        micro_batch = MicroBatch(*self.first_entry(count, self.engine.oracle.padded(count)), self.engine.begin)
        while any(micro_batch.busy):
            micro_batch.slots = step(micro_batch.slots)
            passes = sum(micro_batch.busy) * len(step.pattern) * self.engine.draws
            self.retire(micro_batch)
            self.engine.watch(passes, self.next_sample)
            stop = self.engine.tick(len(step.pattern))
            yield from self.drain()
            if stop:
                return

    def slot_count(self) -> int:
        """Return the number of slots to use."""
        return min(self.engine.slots, len(self.samples))

    def first_entry(self, count: int, room: int) -> tuple[Entry, list[bool]]:
        """Return the `Entry` of the next `count` samples, padded to `room` rows, and which rows hold a sample."""
        at = torch.arange(room, device=self.samples.device)
        live = at < count
        entry = self.engine.entry(self.samples, torch.where(live, at + self.next_sample, 0), live)
        self.next_sample += count
        return entry, live.tolist()

    def retire(self, micro_batch: MicroBatch) -> None:
        """In slots whose attempt has ended, start the sample's next attempt, or else the next waiting sample."""
        ended = self.ended(micro_batch)
        if not ended:
            return
        outcome = micro_batch.part(ended, outcome_of)
        more = self.has_attempts_left(outcome)
        surviving = [i for i, again in zip(ended, more, strict=True) if again]
        if surviving:
            slots = micro_batch.part(surviving, lambda slots: slots)
            micro_batch.write(surviving, self.engine.next_attempt(slots, self.samples))
        done = [i for i, again in zip(ended, more, strict=True) if not again]
        if not done:
            return
        if surviving:
            outcome = take(outcome, self.index([k for k, again in enumerate(more) if not again]))
        refilled = done[: len(self.samples) - self.next_sample]
        self._refill(micro_batch, refilled)
        for i in done[len(refilled) :]:
            micro_batch.busy[i] = False
        micro_batch.shrink(self.engine.oracle.padded(max(sum(micro_batch.busy), 1)))
        self.finished.append((outcome.at, outcome.best))

    def drain(self) -> Iterator[tuple[Tensor, Best]]:
        """Yield the samples that have finished since the last call, and their best points."""
        finished, self.finished = self.finished, []
        yield from finished

    @staticmethod
    def ended(micro_batch: MicroBatch) -> list[int]:
        """Return the numbers of the slots whose attempts have ended."""
        running = micro_batch.running()
        return [i for i, busy in enumerate(micro_batch.busy) if busy and not running[i]]

    def index(self, positions: list[int]) -> Tensor:
        return torch.tensor(positions, device=self.samples.device, dtype=torch.long)

    def has_attempts_left(self, outcome: Outcome) -> list[bool]:
        """Return, per row, whether the slot goes on with the sample's next attempt."""
        e, given = self.engine, self.samples.attempts
        if given is None and len(e.attempts) == 1:
            return [False] * len(outcome.at)
        end = len(e.attempts) if given is None else given[outcome.at, 1]
        more: list[bool] = (~((outcome.best.broken & e.early_exit) | (outcome.attempt + 1 >= end))).tolist()
        return more

    def _refill(self, micro_batch: MicroBatch, places: list[int]) -> None:
        if not places:
            return
        at = torch.arange(self.next_sample, self.next_sample + len(places), device=self.samples.device)
        micro_batch.enter(places, self.engine.entry(self.samples, at, torch.ones_like(at, dtype=torch.bool)))
        self.next_sample += len(places)


def outcome_of(slots: Slots) -> Outcome:
    """Return the sample positions, attempts and best points of slots."""
    return Outcome(slots.at, slots.attempt, slots.best)
