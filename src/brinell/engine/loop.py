"""Keeps a fixed number of slots full until every sample is decided."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Rows
from brinell.core.goal import Goal
from brinell.core.threat import Ball
from brinell.engine.oracle import Oracle
from brinell.engine.recorder import Record, Recorder, blank
from brinell.ops import rng
from brinell.ops.rows import concat, head, put, take

# How many iterations pass between two looks of the host at the set of finished rows; looking costs a synchronisation.
LOOK = {"cpu": 1}
LOOK_ELSEWHERE = 8


@dataclass(frozen=True)
class Leg:
    """One run of an attack on a sample: the rank of the target class on the clean input (0: none) and the restart."""

    rank: int = 0
    restart: int = 0


@dataclass(frozen=True)
class Work:
    """The samples of one stage on the device: a row each, plus the target class of every leg (columns; −1: none)."""

    x: Tensor
    y: Tensor
    key: Tensor
    eps: Tensor
    targets: Tensor
    start: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Slots:
    """What is in flight: which sample, which of its legs, whether it is still running; and the attack's own state."""

    at: Tensor
    leg: Tensor
    live: Tensor
    rows: Rows
    eps: Tensor
    state: Any
    record: Record


@dataclass(frozen=True)
class Engine:
    """Runs one attack over many samples; a sample's legs follow one another and stop as soon as it is broken.

    The slots hold samples. Each iteration the model is asked once about every slot; finished samples leave and others
    take their places. A row's arithmetic never involves another row, so nothing here can change an outcome.
    """

    oracle: Oracle
    attack: AnyAttack
    goal: Goal
    norm_ball: Callable[[Tensor], Ball]
    legs: tuple[Leg, ...]
    slots: int
    early_exit: bool = True
    draws: int = 1
    tick: Callable[[], None] = lambda: None

    def run(self, work: Work) -> Iterator[tuple[Tensor, Record]]:
        """Yields (positions in `work`, their records) as samples finish."""
        block = self.oracle.block
        capacity = -(-min(self.slots, len(work)) // block) * block
        nxt = min(self.slots, len(work))
        at = torch.arange(capacity, device=work.x.device)
        live = at < nxt
        s = self._load(work, torch.where(live, at, 0), live)
        recorder = Recorder(self.goal, nearest=self.attack.minimises, failed=self.draws > 1)
        look = LOOK.get(work.x.device.type, LOOK_ELSEWHERE)
        busy = live.tolist()
        while any(busy):
            for _ in range(look):
                s = self._iterate(s, recorder)
            running = s.live.tolist()
            ended = [i for i, b in enumerate(busy) if b and not running[i]]
            if ended:
                s, done = self._next_legs(s, work, ended)
                if done:
                    index = torch.tensor(done, device=work.x.device)
                    yield s.at[index], take(s.record, index)
                    new = done[: len(work) - nxt]
                    s = self._refill(s, work, new, nxt)
                    nxt += len(new)
                    for i in done[len(new) :]:
                        busy[i] = False
                s, busy = self._compact(s, busy, block)
            self.tick()

    def _iterate(self, s: Slots, recorder: Recorder) -> Slots:
        ball = self.norm_ball(s.eps)
        chosen = getattr(s.state, "target", None)
        target = s.rows.target if chosen is None else chosen
        a = self.oracle.ask(s.state.x, s.rows.y, target, self.attack.loss, self.attack.needs, self.draws)
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

    def _load(self, work: Work, at: Tensor, live: Tensor) -> Slots:
        """Fresh slots for the samples at `at`, first leg."""
        x = work.x[at]
        leg = torch.zeros_like(at)
        rows = self._rows(work, at, leg)
        return Slots(at, leg, live, rows, work.eps[at], self._init(rows, work.eps[at]), blank(x))

    def _init(self, rows: Rows, eps: Tensor) -> Any:
        # A lone row is doubled: reductions over a single long row are split over threads and round differently.
        if len(eps) > 1:
            return self.attack.init(rows, self.norm_ball(eps))
        return head(self.attack.init(concat([rows, rows]), self.norm_ball(torch.cat([eps, eps]))), 1)

    def _rows(self, work: Work, at: Tensor, leg: Tensor) -> Rows:
        ranks = torch.tensor([g.rank for g in self.legs], device=at.device)
        restarts = torch.tensor([g.restart for g in self.legs], device=at.device)
        key = rng.fold(rng.fold(work.key[at], ranks[leg]), restarts[leg])
        start = None if work.start is None else work.start[at]
        return Rows(work.x[at], work.y[at], key, work.targets[at, leg], start, restarts[leg])

    def _next_legs(self, s: Slots, work: Work, ended: list[int]) -> tuple[Slots, list[int]]:
        """Start the next leg of samples that survived one; return the slots whose samples have none left."""
        index = torch.tensor(ended, device=s.at.device)
        stay = ~((s.record.broken[index] & self.early_exit) | (s.leg[index] + 1 >= len(self.legs)))
        on = index[stay]
        done = index[~stay].tolist()
        if len(on):
            leg = s.leg[on] + 1
            rows = self._rows(work, s.at[on], leg)
            state = self._init(rows, s.eps[on])
            s = replace(
                s,
                leg=s.leg.index_copy(0, on, leg),
                live=s.live.index_fill(0, on, True),
                rows=put(s.rows, on, rows),
                state=put(s.state, on, state),
            )
        return s, done

    def _refill(self, s: Slots, work: Work, free: list[int], nxt: int) -> Slots:
        if not free:
            return s
        at = torch.arange(nxt, nxt + len(free), device=s.at.device)
        new = self._load(work, at, torch.ones_like(at, dtype=torch.bool))
        return put(s, torch.tensor(free, device=s.at.device), new)

    def _compact(self, s: Slots, busy: list[bool], block: int) -> tuple[Slots, list[bool]]:
        """Drop whole blocks of empty slots once the queue has run dry."""
        used = [i for i, b in enumerate(busy) if b]
        need = -(-max(len(used), 1) // block) * block
        if need >= len(busy) or not used:
            return s, busy
        spare = [i for i, b in enumerate(busy) if not b][: need - len(used)]
        index = torch.tensor(used + spare, device=s.at.device)
        return take(s, index), [busy[i] for i in index.tolist()]
