"""Keeps a fixed number of slots full until every sample is decided."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import Answer, AnyAttack, Rows, cycle
from brinell.core.goal import Goal
from brinell.core.threat import Ball
from brinell.engine.ahead import Ahead
from brinell.engine.compiling import Refusals, fused
from brinell.engine.flight import Flight
from brinell.engine.lanes import Recordings
from brinell.engine.looks import stride
from brinell.engine.oracle import Oracle
from brinell.engine.recorder import Record, Recorder, blank
from brinell.engine.slots import Leg, Slots, Work
from brinell.ops import rng
from brinell.ops.rows import concat, head, take

__all__ = ["Engine", "Leg", "Slots", "Work"]


@dataclass(frozen=True)
class Engine:
    """Runs one attack over many samples; a sample's legs follow one another and stop as soon as it is broken.

    The slots hold samples. Each iteration the model is asked once about every slot; finished samples leave and others
    take their places. A row's arithmetic never involves another row, so nothing here can change an outcome. `settled`
    says that distances found in lower precision will be settled in float32. `observe` sees the slots and the model's
    answer at every iteration, for those who study trajectories; `tick` is told at every look how many
    there were, and may say that it is enough.
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
    tick: Callable[[int], bool] = lambda iterations: False
    recordings: Recordings | None = None
    observe: "Callable[[Slots, Answer], None] | None" = None

    def run(self, work: Work) -> Iterator[tuple[Tensor, Record]]:
        """Yields (positions in `work`, their records) as samples finish."""
        # Recorded lanes are whole blocks, whose empty slots cost as much as full ones.
        ahead = len(self.legs) > 1 and self.recordings is not None and not self.recordings.failed
        flight = Ahead(self, work) if ahead else Flight(self, work)
        while flight.lanes:
            lane = flight.lanes.pop(0)
            made = flight.made[id(lane)]
            flight.settle(lane)
            while (other := flight.donor(lane)) is not None:
                flight.settle(other)
                flight.move(other, lane)
            if self.tick(made):
                yield from flight.collect()
                return
            # The device goes on before anybody looks at what it has finished.
            if any(lane.busy):
                flight.advance(lane)
                flight.lanes.append(lane)
            else:
                flight.leave(lane)
            yield from flight.collect()

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

    def load(self, work: Work, at: Tensor, live: Tensor, leg: Tensor | None = None) -> Slots:
        """Fresh slots for the samples at `at`, each at its first leg or the one given."""
        if leg is None:
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
    compiled, refusals = fused(move), Refusals(note)
    tables: list[bool] = []

    def run(s: Slots, a: Answer) -> Slots:
        if not tables:
            move(s, a)
            tables.append(True)
        return refusals.attempt(None, lambda: compiled(s, a), lambda: move(s, a))

    return run
