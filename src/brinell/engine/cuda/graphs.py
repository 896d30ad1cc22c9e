"""CUDA graphs: micro-batches whose attack steps are captured once and then replayed, and the cache that keeps them."""

import gc
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

import torch

from brinell.core.attack import AnyAttack
from brinell.core.criterion import Criterion
from brinell.engine.events import Listener, Note, Phase, silent
from brinell.engine.slots import Begin, Entry, MicroBatch, Slots
from brinell.errors import first_line
from brinell.ops.norms import Norm
from brinell.ops.rowwise import clone, overwrite, overwrite_rows, same, where_rows

T = TypeVar("T")
Step = Callable[[Slots], Slots]
"""A pure function that returns slots advanced by some iterations."""


class StepKey(NamedTuple):
    """What tells a captured step from others: `oracle` is its `graph_key`, `settings` is all that is plain numbers."""

    oracle: Hashable
    attack: AnyAttack
    criterion: Criterion
    norm: Norm
    mask: bytes | None
    settings: Hashable


@dataclass(eq=False)
class DeviceMicroBatch(MicroBatch):
    """A micro-batch that runs several iterations on the device between two host syncs (reads by the host).

    `ages` holds, for each slot, the number of iterations of its current attempt. `repeats` is the usual number of steps
    between host syncs. `pending` is the number of `advance` calls whose results the host has not read, at most `depth`.
    A `reusable` micro-batch is kept for later samples.
    """

    step: Step
    repeats: int = 1
    depth: int = 1
    pending: int = 0
    reusable: bool = False

    def __post_init__(self, entry: Entry) -> None:
        self.ages = [0] * len(self.busy)
        super().__post_init__(entry)

    replays: ClassVar[bool] = False
    """Whether a step is replayed, so that no oracle counts its calls."""

    def advance(self, times: int = 1) -> None:
        """Start `times` steps on the device; may return before they have finished."""
        for _ in range(times):
            self.slots = self.step(self.slots)
        self.pending = 1

    def running(self) -> list[bool]:
        """Return, per slot, whether its attempt continues after the oldest unread `advance`; true for new entries."""
        self.pending = 0
        return super().running()

    def agrees(self, expected: Slots) -> bool:
        """Return whether the slots are these and the next step gives the bits of an uncaptured one; they stay."""
        return same(self.slots, expected)

    def forget(self) -> None:
        """Let go of the functions of the evaluation that made this micro-batch; the next one brings its own."""
        self.step = self.begin = _forgotten

    def write(self, places: list[int], new: Slots) -> None:
        super().write(places, new)
        self._reset_ages(places)

    def _reset_ages(self, places: list[int]) -> None:
        for i in places:
            self.ages[i] = 0

    def _keep(self, places: list[int]) -> None:
        super()._keep(places)
        self.ages = [self.ages[i] for i in places]


def _forgotten(*_: object) -> Slots:
    raise RuntimeError("a kept micro-batch is used without the functions of its evaluation")


class _Pause:
    """The number of captures that pause the garbage collector now; whether the collector was enabled before them."""

    lock, users, on = threading.Lock(), 0, False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector during a capture.

    The collector may free old graphs; freeing a graph while another one is captured crashes the process.
    """
    with _Pause.lock:
        if not _Pause.users:
            _Pause.on = gc.isenabled()
            gc.disable()
        _Pause.users += 1
    try:
        yield
    finally:
        with _Pause.lock:
            _Pause.users -= 1
            if not _Pause.users and _Pause.on:
                gc.enable()


@dataclass(eq=False)
class CapturedMicroBatch(DeviceMicroBatch):
    """A micro-batch of fixed memory whose step is captured once as a CUDA graph and then only replayed.

    Raises RuntimeError if a step needs the host (with the driver's message), or if `repeats` replays and `repeats`
    uncaptured calls differ, e.g. for a model that counts its calls or draws random numbers on the host.
    If possible, a second graph captures how new samples enter the slots.
    """

    replays: ClassVar[bool] = True
    depth: int = 2
    reusable: bool = True
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def __post_init__(self, entry: Entry) -> None:
        super().__post_init__(entry)
        self._entered = [0] * len(self.busy)
        self._syncs = [
            (torch.empty(len(self.busy), dtype=torch.bool, pin_memory=True, device="cpu"), torch.cuda.Event())
            for _ in range(self.depth)
        ]
        self._made = self._seen = 0
        self.slots = clone(self.slots)
        self._entering: torch.cuda.CUDAGraph | None = None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._capture_step()
            self._capture_entering(entry)

    def _capture_step(self) -> None:
        before = clone(self.slots)
        # Called first: libraries choose their kernels and memory then, which must not happen during a capture.
        called = self.slots
        for _ in range(self.repeats):
            called = self.step(called)
        called = clone(called)
        self._graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(self._graph, stream=self.stream):
            overwrite(self.slots, self.step(self.slots))
        for _ in range(self.repeats):
            self._graph.replay()
        if not same(self.slots, called):
            raise RuntimeError("the results of the replayed CUDA graph differ from those of the uncaptured step")
        overwrite(self.slots, before)

    def _capture_entering(self, entry: Entry) -> None:
        """Capture how new samples enter the rows that a mask selects; if this fails, entry is not captured."""
        self._inbox, self._mask = clone(entry), torch.ones_like(self.slots.live)
        before, begun = clone(self.slots), clone(self.begin(self._inbox))
        graph = torch.cuda.CUDAGraph()
        try:
            with no_garbage_collection(), torch.cuda.graph(graph, stream=self.stream):
                overwrite(self.slots, where_rows(self._mask, self.begin(self._inbox), self.slots))
        except RuntimeError:
            return
        graph.replay()
        if same(self.slots, begun):
            self._entering = graph
        overwrite(self.slots, before)

    def advance(self, times: int = 1) -> None:
        flags, done = self._syncs[self._made % self.depth]
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self._graph.replay()
            flags.copy_(self.slots.live, non_blocking=True)
            done.record()
        self._made += 1
        self.pending = self._made - self._seen

    def running(self) -> list[bool]:
        flags, done = self._syncs[self._seen % self.depth]
        done.synchronize()
        # Slots entered since then held another sample at the time.
        live = [alive or entered > self._seen for alive, entered in zip(flags.tolist(), self._entered, strict=True)]
        self._seen += 1
        self.pending = self._made - self._seen
        return live

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        with self._between_replays():
            return super().part(places, of)

    def enter(self, places: list[int], entry: Entry) -> None:
        if self._entering is None:
            self.write(places, self.begin(entry))
            return
        with self._between_replays():
            index = self._index(places)
            overwrite_rows(self._inbox, index, entry)
            self._mask.zero_().index_fill_(0, index, True)
        with torch.cuda.stream(self.stream):
            self._entering.replay()
        self._mark_entered(places)

    def write(self, places: list[int], new: Slots) -> None:
        with self._between_replays():
            overwrite_rows(self.slots, self._index(places), new)
        self._mark_entered(places)

    def _mark_entered(self, places: list[int]) -> None:
        self._reset_ages(places)
        for i in places:
            self._entered[i] = self._made

    def agrees(self, expected: Slots) -> bool:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if not super().agrees(expected):
                return False
            before = clone(self.slots)
            called = clone(self.step(self.slots))
            self._graph.replay()
            equal = same(self.slots, called)
            overwrite(self.slots, before)
        torch.cuda.current_stream().wait_stream(self.stream)
        return equal

    def shrink(self, need: int) -> None:
        """Do nothing: captured memory has a fixed size."""

    @contextmanager
    def _between_replays(self) -> Iterator[None]:
        """Let the current stream access the fixed memory after all started replays and before any later replay."""
        outside = torch.cuda.current_stream()
        outside.wait_stream(self.stream)
        yield
        self.stream.wait_stream(outside)


def memory_short() -> bool:
    """Return whether less than half of the device's memory is free."""
    if not torch.cuda.is_available():
        return False
    free, whole = torch.cuda.mem_get_info()
    return free < whole / 2


@dataclass
class GraphCache:
    """A cache of captured micro-batches for later samples: a capture takes as long as dozens of iterations.

    `make` captures a micro-batch, `short` tests whether memory is short; tests replace both. Attacks of fewer than
    `least` iterations run uncaptured. After the first failed capture (`failed`), steps run uncaptured. `seconds` is the
    time spent on captures, compiling included; `unneeded_forwards` counts the forward passes of attempts that began
    before an earlier attempt succeeded. `idle` holds micro-batches that wait for samples.
    """

    listener: Listener = silent
    make: Callable[[Entry, list[bool], Begin, Step, int], DeviceMicroBatch] = CapturedMicroBatch
    short: Callable[[], bool] = memory_short
    idle: dict[Hashable, list[DeviceMicroBatch]] = field(default_factory=dict)
    least: int = 0
    failed: bool = False
    seconds: float = 0.0
    unneeded_forwards: int = 0

    def __post_init__(self) -> None:
        self._tested: set[Hashable] = set()
        self._earlier: set[int] = set()

    def adopt(self, idle: dict[Hashable, list[DeviceMicroBatch]]) -> None:
        """Use these idle micro-batches of an earlier evaluation, after a test, and leave those of this one there."""
        self.idle, self._earlier = idle, {id(m) for others in idle.values() for m in others}

    def pays(self, iterations: int) -> bool:
        """Return whether an attack of this many iterations is worth a capture."""
        return iterations >= self.least

    def micro_batch(
        self, key: Hashable, entry: Entry, busy: list[bool], begin: Begin, step: Step, repeats: int = 1
    ) -> DeviceMicroBatch:
        """Return a micro-batch that holds the samples of `entry`: a cached one with this key, or else a new one."""
        begun = time.perf_counter()
        try:
            reused = self._reused(key, entry, busy, begin, step)
            return self._new(key, entry, busy, begin, step, repeats) if reused is None else reused
        finally:
            self.seconds += time.perf_counter() - begun
            self.listener(Phase(""))

    def _reused(
        self, key: Hashable, entry: Entry, busy: list[bool], begin: Begin, step: Step
    ) -> DeviceMicroBatch | None:
        spare = self.idle.get(key, [])
        while spare:
            reused = spare.pop()
            while reused.pending:  # the host has not seen what it did last
                reused.running()
            reused.busy, reused.begin, reused.step = busy, begin, step
            reused.enter(list(range(len(busy))), entry)
            earlier = id(reused) in self._earlier
            self._earlier.discard(id(reused))
            if not earlier or reused.agrees(begin(entry)):
                return reused
        return None

    def _new(
        self, key: Hashable, entry: Entry, busy: list[bool], begin: Begin, step: Step, repeats: int
    ) -> DeviceMicroBatch:
        if self.failed:
            return DeviceMicroBatch(entry, busy, begin, step)
        # A capture holds a whole block's memory: those of other stages make room where it is short.
        if self.short():
            self.idle.clear()
        self.listener(Phase("capturing the attack as a CUDA graph"))
        try:
            # The first capture of a step is tested over all steps up to a host sync, the others over one step.
            made = self.make(entry, busy, begin, step, 1 if key in self._tested else repeats)
            self._tested.add(key)
            return made
        except RuntimeError as error:
            self.failed, why = True, first_line(error)
            self.listener(
                Note(f"CUDA graphs cannot capture this attack ({why}). It runs without CUDA graphs, more slowly.")
            )
            return DeviceMicroBatch(entry, busy, begin, step)

    def release(self, key: Hashable, micro_batch: DeviceMicroBatch) -> None:
        """Cache an idle micro-batch under this key for later samples, if it is reusable."""
        if micro_batch.reusable:
            self.idle.setdefault(key, []).append(micro_batch)
