"""A scheduler of several micro-batches at once: the device works on some while the host reads another one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.engine.attack_step import AttackStep
from brinell.engine.best_so_far import Best
from brinell.engine.cuda.graphs import DeviceMicroBatch, GraphCache, Step, StepKey
from brinell.engine.scheduler import Scheduler
from brinell.engine.slots import Begin

# Iterations between two host syncs; a sync makes the device wait.
INTERVAL = {"cpu": 1}
DEFAULT_INTERVAL, EARLY_INTERVAL = 10, 4


def sync_interval(attack: AnyAttack, device: torch.device) -> int:
    """Return the number of iterations between two host syncs, a multiple of the length of `query_pattern`."""
    turns = len(attack.query_pattern)
    usual = EARLY_INTERVAL if attack.abandons_early else DEFAULT_INTERVAL
    return -(-INTERVAL.get(device.type, usual) // turns) * turns


def iterations_per_step(attack: AnyAttack, device: torch.device) -> int:
    """Return the number of iterations that are captured and run as one step: the length of `query_pattern`.

    If the attack abandons most samples early, at unknown iterations, a step lasts until the next host sync.
    """
    return sync_interval(attack, device) if attack.abandons_early else len(attack.query_pattern)


@dataclass
class ConcurrentScheduler(Scheduler):
    """A scheduler for accelerators, with one captured micro-batch per block of slots and few host syncs.

    Without CUDA graphs all slots are one micro-batch. Micro-batches merge once no sample waits for a slot.
    """

    graph_cache: GraphCache | None = None
    micro_batches: list[DeviceMicroBatch] = field(default_factory=list)
    iterations: dict[int, list[int]] = field(default_factory=dict)
    """The iterations under way up to each host sync, by micro-batch."""

    def __post_init__(self) -> None:
        e, cache, device, batch = self.engine, self.graph_cache, self.samples.device, self.samples.batch
        self._interval, self._each = sync_interval(e.attack, device), iterations_per_step(e.attack, device)
        count, block, begin = self.slot_count(), e.oracle.block, self.begin()
        # What determines a captured step. The block is that of now: it may shrink.
        shape = (tuple(batch.x.shape[1:]), batch.start is None, batch.id is None, block)
        mask = None if e.ball.mask is None else e.ball.mask.cpu().numpy().tobytes()
        settings = (e.early_exit, e.draws, e.refined, shape, e.attempts)
        self._key = StepKey(e.oracle.graph_key(batch.x), e.attack, e.criterion, e.ball.norm, mask, settings)
        step: Step = self._build_step()
        room = -(-count // block) * block
        if cache is None or cache.failed:
            self.add(DeviceMicroBatch(*self.first_entry(count, room), begin, step))
        else:
            # A graph has one shape: that of a model call.
            each = self._interval // self._each
            pays = cache.pays(e.attack.usual_queries * len(e.attempts) * -(-len(self.samples) // max(count, 1)))
            for first in range(0, room, block):
                entry, busy = self.first_entry(min(block, count - first), block)
                captured = cache.micro_batch(self._key, entry, busy, begin, step, each) if pays else None
                self.add(DeviceMicroBatch(entry, busy, begin, step) if captured is None else captured)
        for micro_batch in self.micro_batches:
            self.advance(micro_batch)

    def run(self) -> Iterator[tuple[Tensor, Best]]:
        while self.micro_batches:
            micro_batch = self.micro_batches.pop(0)
            made = self.iterations[id(micro_batch)].pop(0)
            self.engine.watch(made * sum(micro_batch.busy) * self.engine.draws, self.next_sample)
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
        return self.engine.attack_step(AttackStep, chosen)

    def begin(self) -> Begin:
        """Return the function that begins attempts. Cached graphs keep it, so it must not refer to the samples."""
        return self.engine.begin

    def has_work(self, micro_batch: DeviceMicroBatch) -> bool:
        """Return whether a micro-batch holds any sample."""
        return any(micro_batch.busy)

    def has_waiting(self) -> bool:
        """Return whether a sample waits for a free slot."""
        return self.next_sample < len(self.samples)

    def add(self, micro_batch: DeviceMicroBatch) -> None:
        """Add a micro-batch that holds the samples returned by `first_entry`."""
        self.micro_batches.append(micro_batch)

    def advance(self, micro_batch: DeviceMicroBatch) -> None:
        """Start the iterations up to the next host sync.

        The iterations after this sync are started too if this is the only micro-batch, no sample waits for a slot and
        no sample's budget ends before the sync: the device then need not wait for the host.
        """
        if not micro_batch.pending:
            self._start(micro_batch)
        last = all(other is micro_batch for other in self.micro_batches) and not self.has_waiting()
        while last and micro_batch.pending < micro_batch.depth and self._budget(micro_batch) > 0:
            self._start(micro_batch)

    def _budget(self, micro_batch: DeviceMicroBatch) -> int:
        ages = [age for age, busy in zip(micro_batch.ages, micro_batch.busy, strict=True) if busy]
        return self.engine.attack.queries - max(ages)

    def _start(self, micro_batch: DeviceMicroBatch) -> None:
        times = -(-min(self._interval, max(self._budget(micro_batch), 1)) // self._each)
        micro_batch.advance(times)
        if micro_batch.replays:
            e = self.engine
            e.oracle.calls.rows += times * self._each * len(micro_batch.busy) * e.draws
        self.iterations.setdefault(id(micro_batch), []).append(times * self._each)
        micro_batch.ages = [age + times * self._each for age in micro_batch.ages]

    def merge_candidate(self, micro_batch: DeviceMicroBatch) -> DeviceMicroBatch | None:
        """Return a micro-batch whose samples fit into empty slots of this one; None while samples wait for slots."""
        if self.has_waiting() or not any(micro_batch.busy):
            return None
        room = len(micro_batch.busy) - sum(micro_batch.busy)
        return next((other for other in self.micro_batches if sum(other.busy) <= room), None)

    def merge(self, other: DeviceMicroBatch, into: DeviceMicroBatch) -> None:
        """Move the samples of `other` to empty slots of `into` and release `other`; the device must work on neither."""
        here = [i for i, busy in enumerate(other.busy) if busy]
        there = [i for i, busy in enumerate(into.busy) if not busy][: len(here)]
        if here:
            into.write(there, other.part(here, lambda slots: slots))
        for i, k in zip(there, here, strict=True):
            into.busy[i], into.ages[i] = True, other.ages[k]
        self.moved(other, here, into, there)
        self.micro_batches = [m for m in self.micro_batches if m is not other]
        self.release(other)

    def moved(self, other: DeviceMicroBatch, here: list[int], into: DeviceMicroBatch, there: list[int]) -> None:
        """Hook for subclasses: samples moved from the slots `here` of `other` to the slots `there` of `into`."""

    def release(self, micro_batch: DeviceMicroBatch) -> None:
        """Hand an idle micro-batch back to the graph cache, if the scheduler has a cache."""
        if self.graph_cache is not None:
            self.graph_cache.release(self._key, micro_batch)
