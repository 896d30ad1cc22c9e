"""Several micro-batches under way at once: the device works on some while the host looks at another."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from brinell.engine.best_so_far import Best
from brinell.engine.cuda.compile import CompiledStep
from brinell.engine.cuda.graphs import DeviceMicroBatch, GraphCache, Step
from brinell.engine.cuda.sync import iterations_per_step, sync_interval
from brinell.engine.scheduler import Scheduler, whole
from brinell.engine.slots import Entry, Slots


@dataclass
class ConcurrentScheduler(Scheduler):
    """A scheduler for accelerators: a host sync every few iterations, and one captured micro-batch per block of slots.

    Without graphs there is one micro-batch. Micro-batches merge once no sample waits for a slot.
    """

    graph_cache: GraphCache | None = None
    micro_batches: list[DeviceMicroBatch] = field(default_factory=list)
    iterations: dict[int, list[int]] = field(default_factory=dict)
    """The iterations under way up to each host sync, by micro-batch."""

    def __post_init__(self) -> None:
        e, cache = self.engine, self.graph_cache
        interval, each = (
            sync_interval(e.attack, self.samples.device),
            iterations_per_step(e.attack, self.samples.device),
        )
        self._interval, self._each = interval, each
        self._step: Step = self._build_step() if cache is None else cache.step(self._key(), self._build_step)
        count, block = self.slot_count(), e.oracle.block
        room = -(-count // block) * block
        if cache is None or cache.failed:
            self.add(DeviceMicroBatch(*self.first_entry(count, room), self.begin, self._step))
        else:
            # A graph has one shape: that of a model call.
            for first in range(0, room, block):
                entry, busy = self.first_entry(min(block, count - first), block)
                key = (self._key(), e.attempts)
                self.add(cache.micro_batch(key, entry, busy, self.begin, self._step, interval // each))
        for micro_batch in self.micro_batches:
            self.advance(micro_batch)

    def run(self) -> Iterator[tuple[Tensor, Best]]:
        """Attack all samples; yield (positions in the samples, their best points) as they finish."""
        while self.micro_batches:
            micro_batch = self.micro_batches.pop(0)
            made = self.iterations[id(micro_batch)].pop(0)
            self.retire(micro_batch)
            while (other := self.merge_candidate(micro_batch)) is not None:
                self.retire(other)
                self.merge(other, micro_batch)
            if self.engine.tick(made):
                yield from self.drain()
                return
            # The device continues before the host handles what has finished.
            if self.has_work(micro_batch):
                self.advance(micro_batch)
                self.micro_batches.append(micro_batch)
            else:
                self.release(micro_batch)
            yield from self.drain()

    def _build_step(self) -> Step:
        pattern = self.engine.attack.query_pattern
        chosen = tuple(pattern[k % len(pattern)] for k in range(self._each))
        if self.engine.oracle.compiled:
            return self.engine.attack_step(CompiledStep, chosen)
        return self.engine.attack_step(pattern=chosen)

    def _key(self) -> tuple[object, ...]:
        """Return what determines the step within one evaluation, whose threat and criterion stay the same."""
        e, batch = self.engine, self.samples.batch
        shape = (tuple(batch.x.shape[1:]), batch.start is None, batch.id is None, e.oracle.block)
        return (e.oracle, e.attack, e.early_exit, e.draws, e.refined, shape)

    def begin(self, entry: Entry) -> Slots:
        """Return slots at the beginning of these attempts."""
        return self.engine.begin(entry)

    def has_work(self, micro_batch: DeviceMicroBatch) -> bool:
        """Whether a micro-batch holds any sample."""
        return any(micro_batch.busy)

    def has_waiting(self) -> bool:
        """Whether a sample waits for a free slot."""
        return self.next_sample < len(self.samples)

    def add(self, micro_batch: DeviceMicroBatch) -> None:
        """Add a micro-batch that holds what `first_entry` has returned."""
        self.micro_batches.append(micro_batch)

    def advance(self, micro_batch: DeviceMicroBatch) -> None:
        """Start the iterations up to the next host sync.

        The last micro-batch starts those after it as well, if no sample waits for a slot and no budget ends before: the
        device then need not wait for the host.
        """
        if not micro_batch.pending:
            self._start(micro_batch)
        last = all(other is micro_batch for other in self.micro_batches) and not self.has_waiting()
        while last and micro_batch.pending < micro_batch.depth and self._budget(micro_batch) > 0:
            self._start(micro_batch)

    def _budget(self, micro_batch: DeviceMicroBatch) -> int:
        """Return the iterations until the budget of some row ends."""
        ages = [age for age, busy in zip(micro_batch.ages, micro_batch.busy, strict=True) if busy]
        return self.engine.attack.queries - max(ages)

    def _start(self, micro_batch: DeviceMicroBatch) -> None:
        """Start iterations up to the next host sync, or to the end of some row's budget."""
        times = -(-min(self._interval, max(self._budget(micro_batch), 1)) // self._each)
        micro_batch.advance(times)
        self.iterations.setdefault(id(micro_batch), []).append(times * self._each)
        micro_batch.ages = [age + times * self._each for age in micro_batch.ages]

    def merge_candidate(self, micro_batch: DeviceMicroBatch) -> DeviceMicroBatch | None:
        """Return a micro-batch whose samples all fit into this one, once no sample waits for a slot."""
        if self.has_waiting() or not any(micro_batch.busy):
            return None
        room = len(micro_batch.busy) - sum(micro_batch.busy)
        return next((other for other in self.micro_batches if sum(other.busy) <= room), None)

    def merge(self, other: DeviceMicroBatch, into: DeviceMicroBatch) -> None:
        """Move the samples of one micro-batch to another, and release it; neither is under way."""
        here = [i for i, busy in enumerate(other.busy) if busy]
        there = [i for i, busy in enumerate(into.busy) if not busy][: len(here)]
        if here:
            into.write(there, other.part(here, whole))
        for i, k in zip(there, here, strict=True):
            into.busy[i], into.ages[i] = True, other.ages[k]
        self.moved(other, here, into, there)
        self.micro_batches = [m for m in self.micro_batches if m is not other]
        self.release(other)

    def moved(self, other: DeviceMicroBatch, here: list[int], into: DeviceMicroBatch, there: list[int]) -> None:
        """Hook: samples have changed their slots."""

    def release(self, micro_batch: DeviceMicroBatch) -> None:
        """Give back a micro-batch that has nothing left to do."""
        if self.graph_cache is not None:
            self.graph_cache.release((self._key(), self.engine.attempts), micro_batch)
