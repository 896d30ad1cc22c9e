"""One run of the engine: which samples are in the lanes, which come next, and what becomes of those that end."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best
from brinell.engine.cuda.sync import stride, sync_interval
from brinell.engine.micro_batch import Lane, Plain
from brinell.engine.slots import Entry, Outcome, Slots, Work
from brinell.ops.rowwise import take

if TYPE_CHECKING:
    from brinell.engine.loop import Engine


@dataclass
class Flight:
    """The lanes of a run, and how far the queue of samples has come. A sample's legs follow one another in its slot."""

    engine: "Engine"
    work: Work
    nxt: int = 0
    lanes: list[Lane] = field(default_factory=list)
    done: list[tuple[Tensor, Best]] = field(default_factory=list)
    made: dict[int, list[int]] = field(default_factory=dict)
    """Iterations under way up to each look, by lane."""

    def __post_init__(self) -> None:
        e, device = self.engine, self.work.x.device
        self._key = e.key(self.work)
        build = partial(e.iterations, device)
        self.iterations = build() if e.graph_cache is None else e.graph_cache.iterations(self._key, build)
        count, block = self.seats(), e.oracle.block
        room = -(-count // block) * block
        if e.graph_cache is None or e.graph_cache.failed:
            self.add(Plain(*self.begin(count, room), self.iterations, e.begin))
        else:
            repeats = sync_interval(e.attack, device) // stride(e.attack, device)
            # What is recorded has one shape: that of a model call.
            for first in range(0, room, block):
                part = self.begin(min(block, count - first), block)
                self.add(e.graph_cache.lane((self._key, e.attempts), *part, self.iterations, e.begin, repeats))
        for lane in self.lanes:
            self.advance(lane)

    def seats(self) -> int:
        """How many slots there are to be."""
        return min(self.engine.slots, len(self.work))

    def goes_on(self, lane: Lane) -> bool:
        """Whether a lane has anything to do."""
        return any(lane.busy)

    def waiting(self) -> bool:
        """Whether somebody is waiting for a free slot."""
        return self.nxt < len(self.work)

    def add(self, lane: Lane) -> None:
        """Another lane, filled by `begin`."""
        self.lanes.append(lane)

    def advance(self, lane: Lane) -> None:
        """Start the iterations up to the next look.

        Those after it as well where this is the last lane, nobody waits for a slot and no budget ends before: so the
        device need not wait while the host looks.
        """
        if not lane.pending:
            self._go_on(lane)
        last = all(x is lane for x in self.lanes) and not self.waiting()
        while last and lane.pending < lane.depth and self._budget(lane) > 0:
            self._go_on(lane)

    def _budget(self, lane: Lane) -> int:
        """Iterations until some row's budget ends."""
        return self.engine.attack.queries - max(age for age, busy in zip(lane.ages, lane.busy, strict=True) if busy)

    def _go_on(self, lane: Lane) -> None:
        """To where some row's budget ends, or sooner."""
        attack, device = self.engine.attack, self.work.x.device
        each = stride(attack, device)
        times = -(-min(sync_interval(attack, device), max(self._budget(lane), 1)) // each)
        lane.advance(times)
        self.made.setdefault(id(lane), []).append(times * each)
        lane.ages = [age + times * each for age in lane.ages]

    def begin(self, count: int, room: int) -> tuple[Entry, list[bool]]:
        """So much room with the next samples of the queue in it."""
        at = torch.arange(room, device=self.work.x.device)
        live = at < count
        entry = self.engine.entry(self.work, torch.where(live, at + self.nxt, 0), live)
        self.nxt += count
        return entry, live.tolist()

    def donor(self, lane: Lane) -> Lane | None:
        """Once the queue is empty, a lane whose samples would all find room in this one."""
        if self.waiting():
            return None
        room = len(lane.busy) - sum(lane.busy)
        return next((other for other in self.lanes if sum(other.busy) <= room), None) if any(lane.busy) else None

    def move(self, other: Lane, lane: Lane) -> None:
        """Put the samples of a lane at rest into another one at rest, and leave it."""
        here = [i for i, b in enumerate(other.busy) if b]
        to = [i for i, b in enumerate(lane.busy) if not b][: len(here)]
        if here:
            lane.write(to, other.part(here, _all))
        for i, k in zip(to, here, strict=True):
            lane.busy[i], lane.ages[i] = True, other.ages[k]
        self.moved(other, here, lane, to)
        self.lanes = [x for x in self.lanes if x is not other]
        self.leave(other)

    def moved(self, other: Lane, here: list[int], lane: Lane, to: list[int]) -> None:
        """Take note of samples that have changed their places."""

    def leave(self, lane: Lane) -> None:
        """A lane that has nothing left to do."""
        if self.engine.graph_cache is not None:
            self.engine.graph_cache.give_back((self._key, self.engine.attempts), lane)

    def settle(self, lane: Lane) -> None:
        """Start the next legs of samples that survived one, and refill the slots of those that have none left."""
        ended = self.ended(lane)
        if not ended:
            return
        out = lane.part(ended, outcome)
        stay = self._stay(out)
        on = [i for i, more in zip(ended, stay, strict=True) if more]
        if on:
            lane.write(on, self.engine.next_attempt(lane.part(on, _all), self.work))
            reborn(lane, on)
        done = [i for i, more in zip(ended, stay, strict=True) if not more]
        if not done:
            return
        if on:
            out = take(out, self.index([k for k, more in enumerate(stay) if not more]))
        new = done[: len(self.work) - self.nxt]
        self._refill(lane, new)
        for i in done[len(new) :]:
            lane.busy[i] = False
        lane.shrink(self.engine.oracle.block)
        self.done.append((out.at, out.record))

    def collect(self) -> Iterator[tuple[Tensor, Best]]:
        """The samples that have ended since the last time, and their records."""
        done, self.done = self.done, []
        yield from done

    @staticmethod
    def ended(lane: Lane) -> list[int]:
        """The slots of a lane whose samples have come to the end of their legs."""
        running = lane.running()
        return [i for i, b in enumerate(lane.busy) if b and not running[i]]

    def index(self, slots: list[int]) -> Tensor:
        """As a tensor on the device."""
        return torch.tensor(slots, device=self.work.x.device)

    def _stay(self, out: Outcome) -> list[bool]:
        """Which of these samples have a leg left to run."""
        e = self.engine
        if self.work.attempts is None and len(e.attempts) == 1:
            return [False] * len(out.at)
        end = len(e.attempts) if self.work.attempts is None else self.work.attempts[out.at, 1]
        stay: list[bool] = (~((out.record.broken & e.early_exit) | (out.attempt + 1 >= end))).tolist()
        return stay

    def _refill(self, lane: Lane, free: list[int]) -> None:
        if not free:
            return
        at = torch.arange(self.nxt, self.nxt + len(free), device=self.work.x.device)
        lane.enter(free, self.engine.entry(self.work, at, torch.ones_like(at, dtype=torch.bool)))
        reborn(lane, free)
        self.nxt += len(free)


def outcome(s: Slots) -> Outcome:
    """What has become of the samples."""
    return s.outcome


def _all(s: Slots) -> Slots:
    return s


def reborn(lane: Lane, slots: list[int]) -> None:
    """Other samples or legs are in these slots now."""
    for i in slots:
        lane.ages[i] = 0
