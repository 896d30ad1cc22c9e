"""Slots that move together: several iterations at a time, without the host looking in between."""

import gc
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from brinell.engine.events import Listener, Note, silent
from brinell.engine.slots import Outcome, Slots
from brinell.errors import first_line
from brinell.ops.rows import clone, overwrite, overwrite_rows, put, same, take

Iterations = Callable[[Slots], Slots]
"""Moves slots on by some iterations; a pure function of the slots."""


@runtime_checkable
class Lane(Protocol):
    """Some slots, which of them hold a sample, how many iterations these have had, and a way to move all of them on."""

    busy: list[bool]
    ages: list[int]

    def advance(self, times: int = 1) -> None:
        """Start the iterations, so many times; returns before they are done where the device can work by itself."""

    def running(self) -> list[bool]:
        """Which slots are still live, once the iterations under way are done."""

    def read(self, index: Tensor) -> Slots:
        """A copy of some slots."""

    def outcome(self, index: Tensor) -> Outcome:
        """What has become of some slots."""

    def write(self, index: Tensor, new: Slots) -> None:
        """Put other samples into some slots."""

    def shrink(self, block: int) -> None:
        """Drop empty slots in whole blocks, where the lane can."""


@dataclass(eq=False)
class Plain:
    """A lane whose iterations are called as they are."""

    slots: Slots
    busy: list[bool]
    iterations: Iterations

    def __post_init__(self) -> None:
        self.ages = [0] * len(self.busy)

    def advance(self, times: int = 1) -> None:
        """The next iterations."""
        for _ in range(times):
            self.slots = self.iterations(self.slots)

    def running(self) -> list[bool]:
        """Which slots are still live."""
        live: list[bool] = self.slots.live.tolist()
        return live

    def read(self, index: Tensor) -> Slots:
        """A copy of some slots."""
        return take(self.slots, index)

    def outcome(self, index: Tensor) -> Outcome:
        """What has become of some slots."""
        return take(self.slots.outcome, index)

    def write(self, index: Tensor, new: Slots) -> None:
        """Put other samples into some slots."""
        self.slots = put(self.slots, index, new)

    def shrink(self, block: int) -> None:
        """Drop empty slots in whole blocks."""
        used = [i for i, b in enumerate(self.busy) if b]
        need = -(-max(len(used), 1) // block) * block
        if need >= len(self.busy) or not used:
            return
        spare = [i for i, b in enumerate(self.busy) if not b][: need - len(used)]
        index = used + spare
        self.slots = take(self.slots, torch.tensor(index, device=self.slots.at.device))
        self.busy, self.ages = [self.busy[i] for i in index], [self.ages[i] for i in index]


@dataclass
class _Rest:
    """Who has stopped the garbage collector, and whether it was on before."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    on: bool = False


_REST = _Rest()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For recording: the garbage collector rests.

    It may find recordings of an earlier evaluation, and dropping one while another is being made ends the process.
    """
    with _REST.lock:
        if not _REST.users:
            _REST.on = gc.isenabled()
            gc.disable()
        _REST.users += 1
    try:
        yield
    finally:
        with _REST.lock:
            _REST.users -= 1
            if not _REST.users and _REST.on:
                gc.enable()


class MismatchError(Exception):
    """Recorded iterations do not give what the same iterations gave when they were called."""


@dataclass(eq=False)
class Recorded:
    """A lane of fixed memory whose iterations are recorded once (a CUDA graph) and then only replayed.

    Recording fails, with whatever the driver says, where an iteration needs the host; it is refused (`MismatchError`)
    where replaying it so often as there are `repeats` gives other numbers than calling did, as with a model that counts
    or draws on the host.
    """

    slots: Slots
    busy: list[bool]
    iterations: Iterations
    repeats: int = 1
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def __post_init__(self) -> None:
        self.ages = [0] * len(self.busy)
        self.slots = clone(self.slots)
        self._flags = torch.empty(len(self.busy), dtype=torch.bool, pin_memory=True)
        self._done = torch.cuda.Event()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            before = clone(self.slots)
            # Called first: libraries choose their kernels and memory then, which must not happen while recording.
            called = self.slots
            for _ in range(self.repeats):
                called = self.iterations(called)
            called = clone(called)
            self._graph = torch.cuda.CUDAGraph()
            with undisturbed(), torch.cuda.graph(self._graph, stream=self.stream):
                overwrite(self.slots, self.iterations(self.slots))
            for _ in range(self.repeats):
                self._graph.replay()
            if not same(self.slots, called):
                raise MismatchError
            overwrite(self.slots, before)

    def advance(self, times: int = 1) -> None:
        """Start the next iterations."""
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self._graph.replay()
            self._flags.copy_(self.slots.live, non_blocking=True)
            self._done.record()

    def running(self) -> list[bool]:
        """Which slots are still live, once the iterations under way are done."""
        self._done.synchronize()
        live: list[bool] = self._flags.tolist()
        return live

    def read(self, index: Tensor) -> Slots:
        """A copy of some slots."""
        with self._aside():
            return take(self.slots, index)

    def outcome(self, index: Tensor) -> Outcome:
        """What has become of some slots."""
        with self._aside():
            return take(self.slots.outcome, index)

    def write(self, index: Tensor, new: Slots) -> None:
        """Put other samples into some slots."""
        with self._aside():
            overwrite_rows(self.slots, index, new)

    def shrink(self, block: int) -> None:
        """The memory is fixed: nothing to drop."""

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Work on the lane's memory from the outside: after what is under way, before what comes next."""
        outside = torch.cuda.current_stream()
        outside.wait_stream(self.stream)
        yield
        self.stream.wait_stream(outside)


def memory_short() -> bool:
    """Whether less than half of the device's memory is free."""
    if not torch.cuda.is_available():
        return False
    free, whole = torch.cuda.mem_get_info()
    return free < whole / 2


@dataclass
class Recordings:
    """Recorded lanes, kept for the next chunk of samples: recording takes as long as dozens of iterations.

    `make` and `short` are told apart for tests, which record nothing. After the first failure lanes are plain.
    """

    listener: Listener = silent
    make: Callable[[Slots, list[bool], Iterations, int], Lane] = Recorded
    short: Callable[[], bool] = memory_short
    idle: dict[Hashable, list[Lane]] = field(default_factory=dict)
    functions: dict[Hashable, Iterations] = field(default_factory=dict)
    failed: bool = False
    seconds: float = 0.0
    """Spent on recording, which includes compiling and loading the compiler."""
    vain: int = 0
    """Forwards that were made ahead on empty slots and turned out not to be needed."""

    def iterations(self, key: Hashable, build: Callable[[], Iterations]) -> Iterations:
        """The same function for the same key, so that nothing is compiled twice."""
        if key not in self.functions:
            begun = time.perf_counter()
            self.functions[key] = build()
            self.seconds += time.perf_counter() - begun
        return self.functions[key]

    def lane(self, key: Hashable, slots: Slots, busy: list[bool], iterations: Iterations, repeats: int = 1) -> Lane:
        """A lane for these slots: an idle one of that kind, or a new one."""
        spare = self.idle.get(key, [])
        if spare:
            lane = spare.pop()
            lane.busy, lane.ages = busy, [0] * len(busy)
            lane.write(torch.arange(len(busy), device=slots.at.device), slots)
            return lane
        if self.failed:
            return Plain(slots, busy, iterations)
        # A recording holds a whole block's memory: those of other stages make room where it is short.
        if self.short():
            self.idle = {key: spare}
        begun = time.perf_counter()
        try:
            return self.make(slots, busy, iterations, repeats)
        except (RuntimeError, MismatchError) as error:
            self.failed = True
            why = first_line(error) if str(error) else "the replay gave other numbers"
            self.listener(Note(f"Iterations are not recorded on this device ({why}); going on without."))
            return Plain(slots, busy, iterations)
        finally:
            self.seconds += time.perf_counter() - begun

    def give_back(self, key: Hashable, lane: Lane) -> None:
        """Keep a lane that has nothing left to do."""
        if not isinstance(lane, Plain):
            self.idle.setdefault(key, []).append(lane)
