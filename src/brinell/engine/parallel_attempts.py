"""A scheduler that runs attempts of one sample at the same time, so that few samples fill the calls of the model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best, BestRow, gather_rows, joined
from brinell.engine.scheduler import Scheduler, outcome_of
from brinell.engine.slots import Entry, MicroBatch

# An attempt that has used this share of its queries in vain will most likely use all of them.
PATIENCE = 0.1


@dataclass
class SampleAttempts:
    """The attempts of one sample: `next` is the next attempt to begin, `end` is one past the last attempt.

    The results of attempts below `joined` are joined in `so_far`. `ended` holds results that wait for an earlier
    attempt; `running` holds the attempts under way, each with what its scheduler knows about it.
    """

    next: int
    end: int
    joined: int
    so_far: BestRow | None = None
    ended: dict[int, BestRow] = field(default_factory=dict)
    running: dict[int, Any] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether no attempt is under way although attempts are left to begin."""
        return not self.running and self.next < self.end

    def take(self) -> int:
        """Return the number of the next attempt, which now begins."""
        self.next += 1
        return self.next - 1


def join_ended(samples: list[SampleAttempts], nearest: bool) -> None:
    """Join the best points of ended attempts in the order of attempts, one attempt at a time for all samples."""
    while ready := [s for s in samples if s.joined in s.ended]:
        both = [(s, s.so_far, s.ended[s.joined]) for s in ready]
        if pairs := [(s, a, b) for s, a, b in both if a is not None]:
            best = joined(gather_rows([a for _, a, _ in pairs]), gather_rows([b for _, _, b in pairs]), nearest)
            for k, (s, _, _) in enumerate(pairs):
                s.so_far = BestRow(best, k)
        for s in ready:
            row = s.ended.pop(s.joined)
            s.so_far = row if s.so_far is None else s.so_far
            s.joined += 1


def pack(samples: list[SampleAttempts]) -> None:
    """Copy the best points that these samples still need, so that the memory of all other rows is freed."""
    rows = [r for s in samples for r in (s.so_far, *s.ended.values()) if r is not None]
    if not rows:
        return
    packed = (BestRow(best, k) for best in [gather_rows(rows)] for k in range(len(rows)))
    for s in samples:
        s.so_far = None if s.so_far is None else next(packed)
        s.ended = {attempt: next(packed) for attempt in s.ended}


@dataclass
class ParallelAttempts(Scheduler):
    """A scheduler whose slots hold one attempt each: slots without a sample run later attempts of samples under way.

    With early exit a later attempt begins once the earlier one has used the share `PATIENCE` of its queries. When an
    attempt succeeds, later attempts of the sample are dropped. Every attempt has its own best point. These are joined
    in the order of the attempts: results and counted passes are those of one attempt after another.
    """

    under_way: dict[int, SampleAttempts] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    iterations: int = 0

    def __post_init__(self) -> None:
        given, engine = self.samples.attempts, self.engine
        every = [[0, len(engine.attempts)]] * len(self.samples)
        self._ranges: list[list[int]] = every if given is None else given.tolist()
        length = engine.attack.queries // len(engine.attack.query_pattern)
        self._patience = max(int(PATIENCE * length), 1) if engine.early_exit else 0
        self._first: list[tuple[int, int]] = []

    def slot_count(self) -> int:
        self._first = self._next(self.engine.slots)
        return len(self._first)

    def first_entry(self, count: int, room: int) -> tuple[Entry, list[bool]]:
        live = torch.arange(room, device=self.samples.device) < count
        return self._entry(self._first + self._first[:1] * (room - count), live), live.tolist()

    def retire(self, micro_batch: MicroBatch) -> None:
        """Keep the results of attempts that have ended, and let other attempts begin in free slots."""
        self.iterations += 1
        ended = self.ended(micro_batch)
        if ended:
            self._end(micro_batch, ended)
        if ended or not self.iterations % max(self._patience, 1):
            self._fill(micro_batch)
        if ended:
            micro_batch.shrink(self.engine.oracle.padded(max(sum(micro_batch.busy), 1)))

    def drain(self) -> Iterator[tuple[Tensor, Best]]:
        touched, self.touched = sorted(self.touched), set()
        join_ended([self.under_way[i] for i in touched], self.engine.attack.minimum_norm)
        over = [i for i in touched if self.under_way[i].joined >= self.under_way[i].end]
        rows = [row for i in over if (row := self.under_way.pop(i).so_far) is not None]
        pack([self.under_way[i] for i in touched if i in self.under_way])
        if over:
            yield self.index(over), gather_rows(rows)

    def _end(self, micro_batch: MicroBatch, ended: list[int]) -> None:
        outcome = micro_batch.part(ended, outcome_of)
        broken: list[bool] = (outcome.best.broken & self.engine.early_exit).tolist()
        attempts = zip(ended, outcome.at.tolist(), outcome.attempt.tolist(), broken, strict=True)
        for row, (slot, at, attempt, succeeded) in enumerate(attempts):
            micro_batch.busy[slot] = False
            sample = self.under_way[at]
            # An earlier attempt that ended at the same time has made it unneeded.
            if sample.running.pop(attempt, None) is None:
                continue
            sample.ended[attempt] = BestRow(outcome.best, row)
            self.touched.add(at)
            if succeeded:
                self._drop(micro_batch, at, attempt)

    def _drop(self, micro_batch: MicroBatch, at: int, attempt: int) -> None:
        """Drop the attempts of a sample after this one, which succeeded."""
        sample = self.under_way[at]
        sample.end = attempt + 1
        sample.ended = {k: row for k, row in sample.ended.items() if k <= attempt}
        later = {k for k in sample.running if k > attempt}
        sample.running = {k: v for k, v in sample.running.items() if k <= attempt}
        if later:
            slots = micro_batch.slots
            for slot in ((slots.at == at) & (slots.attempt > attempt)).nonzero()[:, 0].tolist():
                micro_batch.busy[slot] = False

    def _fill(self, micro_batch: MicroBatch) -> None:
        attempts = self._next(self.engine.slots - sum(micro_batch.busy))
        if attempts:
            live = torch.ones(len(attempts), dtype=torch.bool, device=self.samples.device)
            micro_batch.add(self._entry(attempts, live))

    def _next(self, count: int) -> list[tuple[int, int]]:
        """Return up to `count` (sample, attempt) pairs to begin.

        First the samples under way that have no attempt under way, then new samples, then later attempts.
        """
        chosen = [self._begin(i) for i in [i for i, s in self.under_way.items() if s.idle][: max(count, 0)]]
        while len(chosen) < count and self.next_sample < len(self.samples):
            first, end = self._ranges[self.next_sample]
            self.under_way[self.next_sample] = SampleAttempts(first, end, first)
            chosen.append(self._begin(self.next_sample))
            self.next_sample += 1
        while len(chosen) < count and (later := sorted((s.next, i) for i, s in self.under_way.items() if self._due(s))):
            chosen += [self._begin(i) for _, i in later[: count - len(chosen)]]
        return chosen

    def _begin(self, i: int) -> tuple[int, int]:
        attempt = self.under_way[i].take()
        self.under_way[i].running[attempt] = self.iterations
        return i, attempt

    def _due(self, s: SampleAttempts) -> bool:
        """Return whether a later attempt of a sample may begin: its attempts are under way for long enough."""
        return s.next < s.end and self.iterations - max(s.running.values(), default=0) >= self._patience

    def _entry(self, attempts: list[tuple[int, int]], live: Tensor) -> Entry:
        at, attempt = self.index([i for i, _ in attempts]), self.index([k for _, k in attempts])
        return self.engine.entry(self.samples, at, live, attempt)
