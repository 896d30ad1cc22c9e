"""Legs ahead of their turn: slots that would be empty take on what samples under way may need later."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best, joined
from brinell.engine.micro_batch import Lane
from brinell.engine.scheduler import Flight, outcome, reborn
from brinell.engine.slots import Entry
from brinell.ops.rowwise import concat, take

PAIR = 2  # lanes


@dataclass(frozen=True)
class Row:
    """One row of some records."""

    records: Best
    at: int


@dataclass
class Course:
    """A sample's way through its legs: the next to begin, the one to stop before, and those that are joined so far.

    `apart` are legs that have ended before one that comes earlier; `running` are the places of those under way.
    """

    nxt: int
    end: int
    through: int
    so_far: Row | None = None
    apart: dict[int, Row] = field(default_factory=dict)
    running: dict[int, tuple[Lane, int]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether it has legs left to begin and none under way."""
        return not self.running and self.nxt < self.end


@dataclass
class Ahead(Flight):
    """The same, where slots that would be empty take on later legs of samples whose earlier ones still run.

    Lanes are joined first, as ever, but for the last two as long as later legs would fill one of them: a device does
    more with two calls under way. What is still empty in a lane that goes on is filled. Every leg has a record
    of its own, and these are joined in the order of the legs: what comes out is what legs one after another give,
    passes included. Legs that turn out not to be needed, since one before them has succeeded, are dropped, and their
    forwards counted as made in vain.
    """

    courses: dict[int, Course] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    touched: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        all_legs = (0, len(self.engine.attempts))
        attempts = self.work.attempts
        self._attempts: list[tuple[int, int]] = (
            [all_legs] * len(self.work) if attempts is None else [(a, b) for a, b in attempts.tolist()]
        )
        self._given: list[tuple[int, int]] = []
        super().__post_init__()

    def seats(self) -> int:
        """Two lanes of slots at least, where all legs together fill them more than once."""
        attempts, two = sum(end - first for first, end in self._attempts), 2 * self.engine.oracle.block
        few = super().seats()
        return max(few, min(two, self.engine.slots)) if attempts >= 2 * two else few

    def goes_on(self, lane: Lane) -> bool:
        """Whether a lane has anything to do, or later legs are to fill it."""
        return super().goes_on(lane) or (self._fills(lane) and self._spare(lane) > 0)

    def donor(self, lane: Lane) -> Lane | None:
        """A lane whose samples would find room in this one, unless both are better kept."""
        return None if self._fills(lane) else super().donor(lane)

    def _fills(self, lane: Lane) -> bool:
        """Whether this is one of the last two lanes, and legs that have not begun would fill it."""
        return len(self.lanes) < PAIR and sum(max(c.end - c.nxt, 0) for c in self.courses.values()) >= len(lane.busy)

    def _spare(self, lane: Lane) -> int:
        """How many slots may still be taken."""
        others = (x for x in self.lanes if x is not lane)
        return self.engine.slots - sum(sum(x.busy) for x in (lane, *others))

    def waiting(self) -> bool:
        """Whether a sample is left to begin, or one that has nothing under way to go on."""
        return super().waiting() or any(c.idle for c in self.courses.values())

    def advance(self, lane: Lane) -> None:
        """Fill what has stayed empty, and go on."""
        empty = [i for i, b in enumerate(lane.busy) if not b]
        self._fill(lane, empty[: max(self._spare(lane), 0)], ahead=True)
        super().advance(lane)

    def begin(self, count: int, room: int) -> tuple[Entry, list[bool]]:
        """So much room with the next legs in it."""
        self._given = self._next(count)
        live = torch.arange(room, device=self.work.x.device) < len(self._given)
        return self._entry(self._given + [(0, 0)] * (room - len(self._given)), live), live.tolist()

    def add(self, lane: Lane) -> None:
        """Another lane, with what `begin` has put into it."""
        super().add(lane)
        self._seat(lane, list(range(len(self._given))), self._given)

    def moved(self, other: Lane, here: list[int], lane: Lane, to: list[int]) -> None:
        """The legs are found in their new places."""
        self._seat(lane, to, [self.places[id(other)][k] for k in here])

    def settle(self, lane: Lane) -> None:
        """Take note of the legs that have ended, and put others into their slots."""
        ended = self.ended(lane)
        if ended:
            self._note(lane, ended)
        self._fill(lane, [i for i, b in enumerate(lane.busy) if not b])

    def _note(self, lane: Lane, ended: list[int]) -> None:
        record = lane.part(ended, outcome).record
        broken: list[bool] = record.broken.tolist() if self.engine.early_exit else [False] * len(ended)
        for row, (slot, fell) in enumerate(zip(ended, broken, strict=True)):
            self._end(lane, slot, Row(record, row), fell)

    def collect(self) -> Iterator[tuple[Tensor, Best]]:
        """Samples with no leg left to wait for, and their records."""
        touched, self.touched = sorted(set(self.touched)), []
        self._join([self.courses[i] for i in touched])
        over = [i for i in touched if self.courses[i].through >= self.courses[i].end]
        ended = [row for i in over if (row := self.courses.pop(i).so_far) is not None]
        _packed([self.courses[i] for i in touched if i in self.courses])
        if over:
            yield self.index(over), _gathered(ended)

    def _next(self, count: int, ahead: bool = False) -> list[tuple[int, int]]:
        """The next legs to begin: of samples that have none under way, of new ones; or ahead, the earliest first."""
        given: list[tuple[int, int]] = []
        while ahead and len(given) < count:
            open_ = sorted((c.nxt, i) for i, c in self.courses.items() if c.nxt < c.end)
            if not open_:
                break
            given += [self._take(i) for _, i in open_[: count - len(given)]]
        if ahead or not count:
            return given
        given += [self._take(i) for i in [i for i, c in self.courses.items() if c.idle][:count]]
        while len(given) < count and self.nxt < len(self.work):
            first, end = self._attempts[self.nxt]
            self.courses[self.nxt] = Course(first, end, first)
            given.append(self._take(self.nxt))
            self.nxt += 1
        return given

    def _take(self, i: int) -> tuple[int, int]:
        self.courses[i].nxt += 1
        return i, self.courses[i].nxt - 1

    def _seat(self, lane: Lane, slots: list[int], attempts: list[tuple[int, int]]) -> None:
        places = self.places.setdefault(id(lane), [(-1, 0)] * len(lane.busy))
        for slot, (i, attempt) in zip(slots, attempts, strict=True):
            places[slot] = (i, attempt)
            self.courses[i].running[attempt] = (lane, slot)

    def _entry(self, attempts: list[tuple[int, int]], live: Tensor) -> Entry:
        """What these legs of samples begin with."""
        at, attempt = self.index([i for i, _ in attempts]), self.index([k for _, k in attempts])
        return self.engine.entry(self.work, at, live, attempt)

    def _fill(self, lane: Lane, free: list[int], ahead: bool = False) -> None:
        attempts = self._next(len(free), ahead)
        if not attempts:
            return
        slots = free[: len(attempts)]
        lane.enter(slots, self._entry(attempts, torch.ones(len(attempts), dtype=torch.bool, device=self.work.x.device)))
        reborn(lane, slots)
        for slot in slots:
            lane.busy[slot] = True
        self._seat(lane, slots, attempts)

    def _end(self, lane: Lane, slot: int, row: Row, fell: bool) -> None:
        """A leg has ended; where it has succeeded, nothing after it is needed."""
        i, attempt = self.places[id(lane)][slot]
        course = self.courses[i]
        if course.running.pop(attempt, None) is None:  # one before it, at the same look, has made it needless
            return
        lane.busy[slot] = False
        course.apart[attempt] = row
        self.touched.append(i)
        if fell:
            course.end = attempt + 1
            for late in [k for k in course.running if k > attempt]:
                where, place = course.running.pop(late)
                where.busy[place] = False
                self._in_vain(min(where.ages[place], self.engine.attack.queries) * self.engine.draws)
            for late in [k for k in course.apart if k > attempt]:
                gone = course.apart.pop(late)
                self._in_vain(int(gone.records.forwards[gone.at]))

    def _in_vain(self, forwards: int) -> None:
        if self.engine.graph_cache is not None:
            self.engine.graph_cache.unneeded_forwards += forwards

    def _join(self, courses: list[Course]) -> None:
        """Legs that have ended are joined to those before them, all samples at once, leg by leg."""
        nearest = self.engine.attack.minimum_norm
        while ready := [c for c in courses if c.through in c.apart]:
            both = [(c, c.so_far, c.apart[c.through]) for c in ready]
            pairs = [(c, a, b) for c, a, b in both if a is not None]
            if pairs:
                one = joined(_gathered([a for _, a, _ in pairs]), _gathered([b for _, _, b in pairs]), nearest)
                for k, (c, _, _) in enumerate(pairs):
                    c.so_far = Row(one, k)
            for c in ready:
                row = c.apart.pop(c.through)
                c.so_far = row if c.so_far is None else c.so_far
                c.through += 1


def _gathered(rows: list[Row]) -> Best:
    """These rows, each of whatever records it is in, as records of their own."""
    groups: dict[int, list[int]] = {}
    for k, r in enumerate(rows):
        groups.setdefault(id(r.records), []).append(k)
    parts = [_rows_at(rows[group[0]].records, [rows[k].at for k in group]) for group in groups.values()]
    if len(parts) == 1:
        return parts[0]
    order = [k for group in groups.values() for k in group]
    return _rows_at(concat(parts), sorted(range(len(order)), key=order.__getitem__))


def _rows_at(records: Best, index: list[int]) -> Best:
    return take(records, torch.tensor(index, device=records.device))


def _packed(courses: list[Course]) -> None:
    """Let go of records of which only some rows are still wanted."""
    rows = [r for c in courses for r in (c.so_far, *c.apart.values()) if r is not None]
    if not rows:
        return
    packed = (Row(records, k) for records in [_gathered(rows)] for k in range(len(rows)))
    for c in courses:
        c.so_far = None if c.so_far is None else next(packed)
        c.apart = {attempt: next(packed) for attempt in c.apart}
