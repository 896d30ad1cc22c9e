"""Slots that move together: several iterations at a time, without the host looking in between."""

import gc
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from brinell.engine.events import Listener, Note, silent
from brinell.engine.slots import Entry, Slots
from brinell.errors import first_line
from brinell.ops.rowwise import clone, overwrite, overwrite_rows, put, same, take, where_rows

T = TypeVar("T")
Iterations = Callable[[Slots], Slots]
"""Moves slots on by some iterations; a pure function of the slots."""
Begin = Callable[[Entry], Slots]
"""Slots at the beginning of what the entries say; a pure function of these."""


@runtime_checkable
class Lane(Protocol):
    """Some slots, which of them hold a sample, how many iterations these have had, and a way to move all of them on.

    Slots are told by their places.
    """

    busy: list[bool]
    ages: list[int]

    @property
    def depth(self) -> int:
        """How often the lane may have been moved on since the host last looked."""

    @property
    def pending(self) -> int:
        """How often it has been."""

    def advance(self, times: int = 1) -> None:
        """Start the iterations, so many times; returns before they are done where the device can work by itself."""

    def running(self) -> list[bool]:
        """Which slots were live after the oldest iterations that nobody has looked at; those entered since are."""

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        """A copy of what some slots hold, or of a part of it."""

    def enter(self, places: list[int], entry: Entry) -> None:
        """Begin other samples in some slots."""

    def write(self, places: list[int], new: Slots) -> None:
        """Put samples that are under way into some slots."""

    def shrink(self, block: int) -> None:
        """Drop empty slots in whole blocks, where the lane can."""


@dataclass(eq=False)
class Plain:
    """A lane whose iterations are called as they are."""

    entry: InitVar[Entry]
    busy: list[bool]
    iterations: Iterations
    begin: Begin
    depth: int = 1
    pending: int = 0

    def __post_init__(self, entry: Entry) -> None:
        self.slots = self.begin(entry)
        self.ages = [0] * len(self.busy)

    def advance(self, times: int = 1) -> None:
        """The next iterations."""
        for _ in range(times):
            self.slots = self.iterations(self.slots)
        self.pending = 1

    def running(self) -> list[bool]:
        """Which slots are still live."""
        self.pending = 0
        live: list[bool] = self.slots.live.tolist()
        return live

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        """A copy of a part of some slots."""
        return take(of(self.slots), self._index(places))

    def enter(self, places: list[int], entry: Entry) -> None:
        """Begin other samples in some slots."""
        self.write(places, self.begin(entry))

    def write(self, places: list[int], new: Slots) -> None:
        """Put samples that are under way into some slots."""
        self.slots = put(self.slots, self._index(places), new)

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, device=self.slots.device)

    def shrink(self, block: int) -> None:
        """Drop empty slots in whole blocks."""
        used = [i for i, b in enumerate(self.busy) if b]
        need = -(-max(len(used), 1) // block) * block
        if need >= len(self.busy) or not used:
            return
        spare = [i for i, b in enumerate(self.busy) if not b][: need - len(used)]
        index = used + spare
        self.slots = take(self.slots, self._index(index))
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
    or draws on the host. How samples begin is recorded as well, where that can be.
    """

    entry: InitVar[Entry]
    busy: list[bool]
    iterations: Iterations
    begin: Begin
    repeats: int = 1
    depth: int = 2
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def __post_init__(self, entry: Entry) -> None:
        self.ages, self._entered = [0] * len(self.busy), [0] * len(self.busy)
        self._looks = [
            (torch.empty(len(self.busy), dtype=torch.bool, pin_memory=True), torch.cuda.Event())
            for _ in range(self.depth)
        ]
        self._made = self._seen = 0
        self.slots = clone(self.begin(entry))
        self._entering: torch.cuda.CUDAGraph | None = None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._record_iterations()
            self._record_entering(entry)

    def _record_iterations(self) -> None:
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

    def _record_entering(self, entry: Entry) -> None:
        """Rows at the places of a mask begin anew; called as it is where that cannot be recorded."""
        self._inbox, self._mask = clone(entry), torch.ones(len(self.busy), dtype=torch.bool, device=self.slots.device)
        before, begun = clone(self.slots), clone(self.begin(self._inbox))
        graph = torch.cuda.CUDAGraph()
        try:
            with undisturbed(), torch.cuda.graph(graph, stream=self.stream):
                overwrite(self.slots, where_rows(self._mask, self.begin(self._inbox), self.slots))
        except RuntimeError:
            return
        graph.replay()
        if same(self.slots, begun):
            self._entering = graph
        overwrite(self.slots, before)

    @property
    def pending(self) -> int:
        """How often the lane has been moved on since the host last looked."""
        return self._made - self._seen

    def advance(self, times: int = 1) -> None:
        """Start the next iterations."""
        flags, done = self._looks[self._made % self.depth]
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self._graph.replay()
            flags.copy_(self.slots.live, non_blocking=True)
            done.record()
        self._made += 1

    def running(self) -> list[bool]:
        """Which slots are still live, once the oldest iterations nobody has looked at are done."""
        flags, done = self._looks[self._seen % self.depth]
        done.synchronize()
        # Those entered since then were something else at the time.
        live = [alive or entered > self._seen for alive, entered in zip(flags.tolist(), self._entered, strict=True)]
        self._seen += 1
        return live

    def part(self, places: list[int], of: Callable[[Slots], T]) -> T:
        """A copy of a part of some slots."""
        with self._aside():
            return take(of(self.slots), self._index(places))

    def enter(self, places: list[int], entry: Entry) -> None:
        """Begin other samples in some slots."""
        if self._entering is None:
            return self.write(places, self.begin(entry))
        with self._aside():
            index = self._index(places)
            overwrite_rows(self._inbox, index, entry)
            self._mask.zero_().index_fill_(0, index, True)
        with torch.cuda.stream(self.stream):
            self._entering.replay()
        self._note(places)
        return None

    def write(self, places: list[int], new: Slots) -> None:
        """Put samples that are under way into some slots."""
        with self._aside():
            overwrite_rows(self.slots, self._index(places), new)
        self._note(places)

    def _note(self, places: list[int]) -> None:
        for i in places:
            self._entered[i] = self._made

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, device=self.slots.device)

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
class GraphCache:
    """Recorded lanes, kept for the next chunk of samples: recording takes as long as dozens of iterations.

    `make` and `short` are told apart for tests, which record nothing. After the first failure lanes are plain.
    """

    listener: Listener = silent
    make: Callable[[Entry, list[bool], Iterations, Begin, int], Lane] = Recorded
    short: Callable[[], bool] = memory_short
    idle: dict[Hashable, list[Lane]] = field(default_factory=dict)
    functions: dict[Hashable, Iterations] = field(default_factory=dict)
    failed: bool = False
    seconds: float = 0.0
    """Spent on recording, which includes compiling and loading the compiler."""
    unneeded_forwards: int = 0
    """Forwards that were made ahead on empty slots and turned out not to be needed."""

    def iterations(self, key: Hashable, build: Callable[[], Iterations]) -> Iterations:
        """The same function for the same key, so that nothing is compiled twice."""
        if key not in self.functions:
            begun = time.perf_counter()
            self.functions[key] = build()
            self.seconds += time.perf_counter() - begun
        return self.functions[key]

    def lane(
        self, key: Hashable, entry: Entry, busy: list[bool], iterations: Iterations, begin: Begin, repeats: int = 1
    ) -> Lane:
        """A lane for these samples: an idle one of that kind, or a new one."""
        spare = self.idle.get(key, [])
        if spare:
            lane = spare.pop()
            while lane.pending:  # nobody has looked at what it did last
                lane.running()
            lane.busy, lane.ages = busy, [0] * len(busy)
            lane.enter(list(range(len(busy))), entry)
            return lane
        if self.failed:
            return Plain(entry, busy, iterations, begin)
        # A recording holds a whole block's memory: those of other stages make room where it is short.
        if self.short():
            self.idle = {key: spare}
        begun = time.perf_counter()
        try:
            return self.make(entry, busy, iterations, begin, repeats)
        except (RuntimeError, MismatchError) as error:
            self.failed = True
            why = first_line(error) if str(error) else "the replay gave other numbers"
            self.listener(Note(f"Iterations are not recorded on this device ({why}); going on without."))
            return Plain(entry, busy, iterations, begin)
        finally:
            self.seconds += time.perf_counter() - begun

    def give_back(self, key: Hashable, lane: Lane) -> None:
        """Keep a lane that has nothing left to do."""
        if not isinstance(lane, Plain):
            self.idle.setdefault(key, []).append(lane)
