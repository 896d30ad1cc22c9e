"""Speculative execution: empty slots run later attempts of samples whose earlier attempts are still under way."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best, BestRow, gather_rows
from brinell.engine.cuda.graphs import DeviceMicroBatch
from brinell.engine.cuda.scheduler import ConcurrentScheduler
from brinell.engine.parallel_attempts import SampleAttempts, join_ended, pack
from brinell.engine.scheduler import outcome_of
from brinell.engine.slots import Entry, MicroBatch

PAIR = 2  # micro-batches


@dataclass
class SpeculativeScheduler(ConcurrentScheduler):
    """A scheduler whose empty slots run later attempts of samples while an earlier attempt is still under way.

    Micro-batches merge first, except for the last two while later attempts would fill one of them: two concurrent calls
    use a device better than one. Then later attempts fill the empty slots. Every attempt has its own best point. Best
    points are joined in the order of the attempts, so that results and counted passes are the same as if the attempts
    had run one after another. When an attempt succeeds, later attempts of the sample are dropped;
    `unneeded_forwards` counts the forward passes of dropped attempts.
    """

    under_way: dict[int, SampleAttempts] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    touched: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = self.samples.attempts
        every = [[0, len(self.engine.attempts)]] * len(self.samples)
        self._ranges: list[list[int]] = every if given is None else given.tolist()
        self._entered: list[tuple[int, int]] = []
        super().__post_init__()

    def slot_count(self) -> int:
        """Return the number of slots: at least two blocks if there are attempts for four blocks and slots for two."""
        attempts, two = sum(end - first for first, end in self._ranges), PAIR * self.engine.oracle.block
        usual = super().slot_count()
        return max(usual, min(two, self.engine.slots)) if attempts >= 2 * two else usual

    def has_work(self, micro_batch: DeviceMicroBatch) -> bool:
        return super().has_work(micro_batch) or (self._stays(micro_batch) and self._spare(micro_batch) > 0)

    def merge_candidate(self, micro_batch: DeviceMicroBatch) -> DeviceMicroBatch | None:
        return None if self._stays(micro_batch) else super().merge_candidate(micro_batch)

    def _stays(self, micro_batch: DeviceMicroBatch) -> bool:
        """Return whether this is one of the last two micro-batches, and enough attempts wait to fill it."""
        waiting = sum(max(a.end - a.next, 0) for a in self.under_way.values())
        return len(self.micro_batches) < PAIR and waiting >= len(micro_batch.busy)

    def _spare(self, micro_batch: DeviceMicroBatch) -> int:
        others = (m for m in self.micro_batches if m is not micro_batch)
        return self.engine.slots - sum(sum(m.busy) for m in (micro_batch, *others))

    def has_waiting(self) -> bool:
        return super().has_waiting() or any(a.idle for a in self.under_way.values())

    def advance(self, micro_batch: DeviceMicroBatch) -> None:
        self._fill(micro_batch, _empty(micro_batch)[: max(self._spare(micro_batch), 0)], ahead=True)
        super().advance(micro_batch)

    def first_entry(self, count: int, room: int) -> tuple[Entry, list[bool]]:
        self._entered = self._next(count)
        live = torch.arange(room, device=self.samples.device) < len(self._entered)
        padding = [(0, 0)] * (room - len(self._entered))
        return self._entry(self._entered + padding, live), live.tolist()

    def add(self, micro_batch: DeviceMicroBatch) -> None:
        super().add(micro_batch)
        self._place(micro_batch, list(range(len(self._entered))), self._entered)

    def moved(self, other: DeviceMicroBatch, here: list[int], into: DeviceMicroBatch, there: list[int]) -> None:
        self._place(into, there, [self.places[id(other)][k] for k in here])

    def retire(self, micro_batch: MicroBatch) -> None:
        assert isinstance(micro_batch, DeviceMicroBatch)
        ended = self.ended(micro_batch)
        if ended:
            self._finish(micro_batch, ended)
        self._fill(micro_batch, _empty(micro_batch))

    def _finish(self, micro_batch: DeviceMicroBatch, ended: list[int]) -> None:
        best = micro_batch.part(ended, outcome_of).best
        broken: list[bool] = best.broken.tolist() if self.engine.early_exit else [False] * len(ended)
        for row, (slot, succeeded) in enumerate(zip(ended, broken, strict=True)):
            self._end(micro_batch, slot, BestRow(best, row), succeeded)

    def drain(self) -> Iterator[tuple[Tensor, Best]]:
        touched, self.touched = sorted(set(self.touched)), []
        join_ended([self.under_way[i] for i in touched], self.engine.attack.minimum_norm)
        over = [i for i in touched if self.under_way[i].joined >= self.under_way[i].end]
        rows = [row for i in over if (row := self.under_way.pop(i).so_far) is not None]
        pack([self.under_way[i] for i in touched if i in self.under_way])
        if over:
            yield self.index(over), gather_rows(rows)

    def _next(self, count: int, ahead: bool = False) -> list[tuple[int, int]]:
        """Return up to `count` (sample, attempt) pairs to begin: first for idle samples, then for new samples.

        With `ahead`, return later attempts of samples under attack instead, lowest attempt numbers first.
        """
        chosen: list[tuple[int, int]] = []
        while ahead and len(chosen) < count:
            available = sorted((a.next, i) for i, a in self.under_way.items() if a.next < a.end)
            if not available:
                break
            chosen += [self._take(i) for _, i in available[: count - len(chosen)]]
        if ahead or not count:
            return chosen
        chosen += [self._take(i) for i in [i for i, a in self.under_way.items() if a.idle][:count]]
        while len(chosen) < count and self.next_sample < len(self.samples):
            first, end = self._ranges[self.next_sample]
            self.under_way[self.next_sample] = SampleAttempts(first, end, first)
            chosen.append(self._take(self.next_sample))
            self.next_sample += 1
        return chosen

    def _take(self, i: int) -> tuple[int, int]:
        return i, self.under_way[i].take()

    def _place(self, micro_batch: DeviceMicroBatch, slots: list[int], attempts: list[tuple[int, int]]) -> None:
        places = self.places.setdefault(id(micro_batch), [(-1, 0)] * len(micro_batch.busy))
        for slot, (i, attempt) in zip(slots, attempts, strict=True):
            places[slot] = (i, attempt)
            self.under_way[i].running[attempt] = (micro_batch, slot)

    def _entry(self, attempts: list[tuple[int, int]], live: Tensor) -> Entry:
        at, attempt = self.index([i for i, _ in attempts]), self.index([k for _, k in attempts])
        return self.engine.entry(self.samples, at, live, attempt)

    def _fill(self, micro_batch: DeviceMicroBatch, free: list[int], ahead: bool = False) -> None:
        attempts = self._next(len(free), ahead)
        if not attempts:
            return
        slots = free[: len(attempts)]
        live = torch.ones(len(attempts), dtype=torch.bool, device=self.samples.device)
        micro_batch.enter(slots, self._entry(attempts, live))
        for slot in slots:
            micro_batch.busy[slot] = True
        self._place(micro_batch, slots, attempts)

    def _end(self, micro_batch: DeviceMicroBatch, slot: int, row: BestRow, succeeded: bool) -> None:
        """End the attempt in this slot; if it succeeded, drop all later attempts of the sample."""
        i, attempt = self.places[id(micro_batch)][slot]
        sample = self.under_way[i]
        if sample.running.pop(attempt, None) is None:  # an earlier one, at the same host sync, has made it unneeded
            return
        micro_batch.busy[slot] = False
        sample.ended[attempt] = row
        self.touched.append(i)
        if not succeeded:
            return
        sample.end, unneeded = attempt + 1, 0
        for later in [k for k in sample.running if k > attempt]:
            where, place = sample.running.pop(later)
            where.busy[place] = False
            unneeded += min(where.ages[place], self.engine.attack.queries) * self.engine.draws
        for later in [k for k in sample.ended if k > attempt]:
            dropped = sample.ended.pop(later)
            unneeded += int(dropped.best.forwards[dropped.at])
        if self.graph_cache is not None:
            self.graph_cache.unneeded_forwards += unneeded


def _empty(micro_batch: DeviceMicroBatch) -> list[int]:
    return [i for i, busy in enumerate(micro_batch.busy) if not busy]
