"""Keeps a fixed number of slots full until every sample is decided."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import Answer, AnyAttack, Rows, cycle, uneven
from brinell.core.goal import Goal
from brinell.core.threat import Ball
from brinell.engine.compiling import fused
from brinell.engine.lanes import Lane, Plain, Recordings
from brinell.engine.oracle import Oracle
from brinell.engine.recorder import Record, Recorder, blank
from brinell.engine.slots import Leg, Outcome, Slots, Work
from brinell.ops import rng
from brinell.ops.rows import concat, head, take

__all__ = ["Engine", "Leg", "Slots", "Work"]

# How many iterations pass between two looks of the host at the set of finished rows; looking costs a synchronisation.
LOOK = {"cpu": 1}
LOOK_ELSEWHERE, LOOK_UNEVEN = 10, 8


def look_every(attack: AnyAttack, device: torch.device) -> int:
    """Iterations between two looks, in whole cycles of the attack; fewer where the first budget of a lane ends."""
    turns = len(cycle(attack))
    usual = LOOK_UNEVEN if uneven(attack) else LOOK_ELSEWHERE
    return -(-LOOK.get(device.type, usual) // turns) * turns


def stride(attack: AnyAttack, device: torch.device) -> int:
    """Iterations that are made, and recorded, as one: a cycle of the attack.

    Where most rows use a small part of their budgets, nothing is known of their ends: all of them to the next look.
    """
    return look_every(attack, device) if uneven(attack) else len(cycle(attack))


@dataclass(frozen=True)
class Engine:
    """Runs one attack over many samples; a sample's legs follow one another and stop as soon as it is broken.

    The slots hold samples. Each iteration the model is asked once about every slot; finished samples leave and others
    take their places. A row's arithmetic never involves another row, so nothing here can change an outcome. `settled`
    says that distances found in lower precision will be settled in float32. `observe` sees the slots and the model's
    answer at every iteration, for those who study trajectories.
    """

    oracle: Oracle
    attack: AnyAttack
    goal: Goal
    norm_ball: Callable[[Tensor], Ball]
    legs: tuple[Leg, ...]
    slots: int
    early_exit: bool = True
    draws: int = 1
    settled: bool = False
    tick: Callable[[], None] = lambda: None
    recordings: Recordings | None = None
    observe: "Callable[[Slots, Answer], None] | None" = None

    def run(self, work: Work) -> Iterator[tuple[Tensor, Record]]:
        """Yields (positions in `work`, their records) as samples finish."""
        flight = Flight(self, work)
        while flight.lanes:
            lane = flight.lanes.pop(0)
            done = [flight.settle(lane)]
            while (other := flight.donor(lane)) is not None:
                done.append(flight.settle(other))
                flight.move(other, lane)
            # The device goes on before anybody looks at what it has finished.
            if any(lane.busy):
                flight.advance(lane)
                flight.lanes.append(lane)
            else:
                flight.leave(lane)
            yield from (d for d in done if d is not None)
            self.tick()

    def key(self, work: Work) -> Hashable:
        """What decides the iterations, within one evaluation: its threat and goal stay the same."""
        shape = (tuple(work.x.shape[1:]), work.start is None, work.id is None, self.oracle.block)
        return (self.oracle, self.attack, self.early_exit, self.draws, self.settled, shape)

    def iterations(self, device: torch.device) -> Callable[[Slots], Slots]:
        """So many iterations as one function of the slots."""
        # Where float32 settles the nearest point afterwards, it is kept however sure it is.
        slack = 0.0 if self.settled else self.oracle.slack
        recorder = Recorder(self.goal, self.attack.minimises, self.draws > 1, slack)
        turns = cycle(self.attack)
        needs = [turns[k % len(turns)] for k in range(stride(self.attack, device))]

        move = partial(self._after, recorder)
        # A function of its own for every kind of answer.
        moves = {need: _fused(move, self.oracle.note) if self.oracle.compiled else move for need in set(turns)}

        def run(s: Slots) -> Slots:
            for need in needs:
                chosen = getattr(s.state, "target", None)
                target = s.rows.target if chosen is None else chosen
                a = self.oracle.ask(s.state.x, s.rows.y, target, self.attack.loss, need, self.draws, s.rows.id)
                if self.observe is not None:
                    self.observe(s, a)
                s = moves[need](s, a)
            return s

        return run

    def _after(self, recorder: Recorder, s: Slots, a: Answer) -> Slots:
        """The slots once the model has answered: what was seen is recorded, the attack has moved on."""
        ball = self.norm_ball(s.eps)
        aside = getattr(s.state, "aside", None)
        seen = s.live if aside is None else s.live & ~aside
        record = recorder.see(s.record, s.state.x, a, s.rows, ball, seen, s.leg)
        record = replace(
            record,
            forwards=record.forwards + s.live * self.draws,
            backwards=record.backwards + s.live * (a.backwards * self.draws),
        )
        state = self.attack.step(s.state, a, s.rows, ball)
        # Rows that are not live move on unwatched until they are replaced; only their counter must stand still.
        state = replace(state, t=torch.where(s.live, state.t, s.state.t))
        over = state.t >= self.attack.queries
        if self.early_exit:
            over = over | record.broken
        return replace(s, state=state, record=record, live=s.live & ~over)

    def load(self, work: Work, at: Tensor, live: Tensor) -> Slots:
        """Fresh slots for the samples at `at`, each at its first leg."""
        leg = torch.zeros_like(at) if work.legs is None else work.legs[at, 0]
        rows = self._rows(work, at, leg)
        return Slots(at, leg, live, rows, work.eps[at], self._init(rows, work.eps[at]), blank(work.x[at]))

    def next_leg(self, s: Slots, work: Work) -> Slots:
        """The same samples at the beginning of their next legs."""
        rows = self._rows(work, s.at, s.leg + 1)
        live = torch.ones_like(s.live)
        return replace(s, leg=s.leg + 1, live=live, rows=rows, state=self._init(rows, s.eps))

    def _init(self, rows: Rows, eps: Tensor) -> Any:
        """The attack's first states. How many rows begin together is chance, so their shape must not matter.

        On a CPU it matters for a lone row, whose reductions are split over threads: it is doubled. Other devices reduce
        rows in an order that depends on their number: there it is always a whole block.
        """
        n, cpu = len(eps), eps.device.type == "cpu"
        if cpu and n > 1:
            return self.attack.init(rows, self.norm_ball(eps))
        room = 2 if cpu else self.oracle.block
        parts = []
        for first in range(0, n, room):
            index = torch.arange(first, first + room, device=eps.device).clamp(max=n - 1)
            parts.append(self.attack.init(take(rows, index), self.norm_ball(eps[index])))
        return head(concat(parts), n)

    def _rows(self, work: Work, at: Tensor, leg: Tensor) -> Rows:
        ranks = torch.tensor([g.rank for g in self.legs], device=at.device)
        restarts = torch.tensor([g.restart for g in self.legs], device=at.device)
        key = rng.fold(rng.fold(work.key[at], ranks[leg]), restarts[leg])
        start = None if work.start is None else work.start[at]
        id = None if work.id is None else work.id[at]
        return Rows(work.x[at], work.y[at], key, work.targets[at, leg], start, restarts[leg], id)


def _fused(move: Callable[[Slots, Answer], Slots], note: Callable[[str], None]) -> Callable[[Slots, Answer], Slots]:
    """The same function compiled; called once as it is before, so that the tables it looks up exist."""
    compiled = fused(move, note)
    tables: list[bool] = []

    def run(s: Slots, a: Answer) -> Slots:
        if not tables:
            move(s, a)
            tables.append(True)
        return compiled(s, a)

    return run


@dataclass
class Flight:
    """One run of the engine: its lanes, and how far the queue of samples has come."""

    engine: Engine
    work: Work
    nxt: int = 0
    lanes: list[Lane] = field(default_factory=list)

    def __post_init__(self) -> None:
        e, device = self.engine, self.work.x.device
        self._key = e.key(self.work)
        build = partial(e.iterations, device)
        self.iterations = build() if e.recordings is None else e.recordings.iterations(self._key, build)
        count, block = min(e.slots, len(self.work)), e.oracle.block
        room = -(-count // block) * block
        if e.recordings is None or e.recordings.failed:
            self.lanes.append(Plain(*self._slots(count, room), self.iterations))
        else:
            # What is recorded has one shape: that of a model call.
            for _ in range(room // block):
                part = min(block, count - self.nxt)
                self.lanes.append(e.recordings.lane(self._key, *self._slots(part, block), self.iterations))
        for lane in self.lanes:
            self.advance(lane)

    def advance(self, lane: Lane) -> None:
        """Start the iterations up to the next look, which is where some row's budget ends or sooner."""
        attack, device = self.engine.attack, self.work.x.device
        each = stride(attack, device)
        left = attack.queries - max(age for age, busy in zip(lane.ages, lane.busy, strict=True) if busy)
        times = -(-min(look_every(attack, device), max(left, 1)) // each)
        lane.advance(times)
        lane.ages = [age + times * each for age in lane.ages]

    def _slots(self, count: int, room: int) -> tuple[Slots, list[bool]]:
        """So much room with the next samples of the queue in it."""
        at = torch.arange(room, device=self.work.x.device)
        live = at < count
        slots = self.engine.load(self.work, torch.where(live, at + self.nxt, 0), live)
        self.nxt += count
        return slots, live.tolist()

    def donor(self, lane: Lane) -> Lane | None:
        """Once the queue is empty, a lane whose samples would all find room in this one."""
        if self.nxt < len(self.work):
            return None
        room = len(lane.busy) - sum(lane.busy)
        return next((other for other in self.lanes if sum(other.busy) <= room), None) if any(lane.busy) else None

    def move(self, other: Lane, lane: Lane) -> None:
        """Put the samples of a lane at rest into another one at rest, and leave it."""
        here = [i for i, b in enumerate(other.busy) if b]
        to = [i for i, b in enumerate(lane.busy) if not b][: len(here)]
        if here:
            lane.write(self._index(to), other.read(self._index(here)))
        for i, k in zip(to, here, strict=True):
            lane.busy[i], lane.ages[i] = True, other.ages[k]
        self.lanes = [x for x in self.lanes if x is not other]
        self.leave(other)

    def leave(self, lane: Lane) -> None:
        """A lane that has nothing left to do."""
        if self.engine.recordings is not None:
            self.engine.recordings.give_back(self._key, lane)

    def settle(self, lane: Lane) -> tuple[Tensor, Record] | None:
        """Start the next legs of samples that survived one, and refill the slots of those that have none left."""
        running = lane.running()
        ended = [i for i, b in enumerate(lane.busy) if b and not running[i]]
        if not ended:
            return None
        out = lane.outcome(self._index(ended))
        stay = self._stay(out)
        on = [i for i, more in zip(ended, stay, strict=True) if more]
        if on:
            lane.write(self._index(on), self.engine.next_leg(lane.read(self._index(on)), self.work))
            _reborn(lane, on)
        done = [i for i, more in zip(ended, stay, strict=True) if not more]
        if not done:
            return None
        if on:
            out = take(out, self._index([k for k, more in enumerate(stay) if not more]))
        new = done[: len(self.work) - self.nxt]
        self._refill(lane, new)
        for i in done[len(new) :]:
            lane.busy[i] = False
        lane.shrink(self.engine.oracle.block)
        return out.at, out.record

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, device=self.work.x.device)

    def _stay(self, out: Outcome) -> list[bool]:
        """Which of these samples have a leg left to run."""
        e = self.engine
        if self.work.legs is None and len(e.legs) == 1:
            return [False] * len(out.at)
        end = len(e.legs) if self.work.legs is None else self.work.legs[out.at, 1]
        stay: list[bool] = (~((out.record.broken & e.early_exit) | (out.leg + 1 >= end))).tolist()
        return stay

    def _refill(self, lane: Lane, free: list[int]) -> None:
        if not free:
            return
        at = torch.arange(self.nxt, self.nxt + len(free), device=self.work.x.device)
        lane.write(self._index(free), self.engine.load(self.work, at, torch.ones_like(at, dtype=torch.bool)))
        _reborn(lane, free)
        self.nxt += len(free)


def _reborn(lane: Lane, slots: list[int]) -> None:
    for i in slots:
        lane.ages[i] = 0
