"""Keeps a fixed number of slots full until every sample is decided."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Attempt, Batch, Response, branching
from brinell.core.criterion import Criterion
from brinell.core.threat import Ball
from brinell.engine.best_so_far import Best, BestSoFar, blank
from brinell.engine.cuda.compile import Refusals, fused
from brinell.engine.cuda.parallel_restarts import Branches
from brinell.engine.cuda.speculative import Ahead
from brinell.engine.cuda.sync import stride
from brinell.engine.micro_batch import GraphCache
from brinell.engine.oracle import Oracle
from brinell.engine.scheduler import Flight
from brinell.engine.slots import Entry, Slots, Work
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.rowwise import concat, head, take, where_rows

__all__ = ["Engine", "Slots", "Work"]


S = TypeVar("S")


@dataclass(frozen=True)
class _Rows:
    """What an attack's first states are made of."""

    rows: Batch
    eps: Tensor


@dataclass(frozen=True)
class _Branch(_Rows):
    """What the first states of branches are made of."""

    seed: Any
    which: Tensor


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
    criterion: Criterion
    norm_ball: Callable[[Tensor], Ball]
    attempts: tuple[Attempt, ...]
    slots: int
    early_exit: bool = True
    draws: int = 1
    settled: bool = False
    tick: Callable[[int], bool] = lambda iterations: False
    graph_cache: GraphCache | None = None
    observe: "Callable[[Slots, Response], None] | None" = None

    def run(self, work: Work) -> Iterator[tuple[Tensor, Best]]:
        """Yields (positions in `work`, their records) as samples finish."""
        flight = self._flight()(self, work)
        while flight.lanes:
            lane = flight.lanes.pop(0)
            made = flight.made[id(lane)].pop(0)
            flight.settle(lane)
            while (other := flight.donor(lane)) is not None:
                flight.settle(other)
                flight.move(other, lane)
            if self.tick(made):
                yield from flight.collect()
                return
            # The device goes on before anybody looks at what it has finished.
            if flight.goes_on(lane):
                flight.advance(lane)
                flight.lanes.append(lane)
            else:
                flight.leave(lane)
            yield from flight.collect()

    def _flight(self) -> type[Flight]:
        """How samples go through their legs. Recorded lanes are whole blocks: empty slots cost as much as full ones."""
        if self.graph_cache is None:
            return Flight
        # Whether recording works or not: compiled, a branch is not bit for bit the run within the sample's own row.
        if branching(self.attack) is not None and len(self.attempts) == 1:
            return Branches
        return Ahead if len(self.attempts) > 1 and not self.graph_cache.failed else Flight

    def key(self, work: Work) -> Hashable:
        """What decides the iterations, within one evaluation: its threat and goal stay the same."""
        shape = (tuple(work.x.shape[1:]), work.start is None, work.id is None, self.oracle.block)
        return (self.oracle, self.attack, self.early_exit, self.draws, self.settled, shape)

    def iterations(self, device: torch.device) -> Callable[[Slots], Slots]:
        """So many iterations as one function of the slots."""
        # Where float32 settles the nearest point afterwards, it is kept however sure it is.
        slack = 0.0 if self.settled else self.oracle.slack
        recorder = BestSoFar(self.criterion, self.attack.minimum_norm, self.draws > 1, slack)
        turns = self.attack.query_pattern
        requires = [turns[k % len(turns)] for k in range(stride(self.attack, device))]

        move = partial(self._after, recorder)
        # A function of its own for every kind of answer.
        moves = {need: _fused(move, self.oracle.note) if self.oracle.compiled else move for need in set(turns)}

        def run(s: Slots) -> Slots:
            for need in requires:
                chosen = s.state.aim
                target = s.rows.target if chosen is None else chosen
                a = self.oracle.query(s.state.x, s.rows.y, target, self.attack.loss, need, self.draws, s.rows.id)
                if self.observe is not None:
                    self.observe(s, a)
                s = moves[need](s, a)
            return s

        return run

    def _after(self, recorder: BestSoFar, s: Slots, a: Response) -> Slots:
        """The slots once the model has answered: what was seen is recorded, the attack has moved on."""
        ball = self.norm_ball(s.eps)
        exploring = s.state.exploring
        seen = s.live if exploring is None else s.live & ~exploring
        record = recorder.see(s.record, s.state.x, a, s.rows, ball, seen, s.attempt)
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

    def entry(self, work: Work, at: Tensor, live: Tensor, attempt: Tensor | None = None) -> Entry:
        """What the samples at `at` begin with, each at its first leg or the one given."""
        if attempt is None:
            attempt = torch.zeros_like(at) if work.attempts is None else work.attempts[at, 0]
        start, id = (None if v is None else v[at] for v in (work.start, work.id))
        return Entry(
            at, attempt, live, work.x[at], work.y[at], work.key[at], work.eps[at], work.targets[at, attempt], start, id
        )

    def begin(self, e: Entry) -> Slots:
        """Slots at the beginning of these legs or branches, with nothing recorded yet."""
        rows, attack = self._rows(e), branching(self.attack)
        state = self._init(rows, e.eps)
        if attack is not None and e.which is not None:
            later = self._in_shape(
                lambda b: attack.branch(b.seed, b.which, b.rows, self.norm_ball(b.eps)),
                _Branch(rows, e.eps, e.seed, e.which.clamp(min=0)),
                len(e.eps),
            )
            state = where_rows(e.which >= 0, later, attack.alone(state))
        return Slots(e.at, e.attempt, e.live, rows, e.eps, state, blank(e.x))

    def next_attempt(self, s: Slots, work: Work) -> Slots:
        """The same samples at the beginning of their next legs."""
        live = torch.ones_like(s.live)
        rows = self._rows(self.entry(work, s.at, live, s.attempt + 1))
        return replace(s, attempt=s.attempt + 1, live=live, rows=rows, state=self._init(rows, s.eps))

    def _init(self, rows: Batch, eps: Tensor) -> Any:
        return self._in_shape(lambda b: self.attack.init(b.rows, self.norm_ball(b.eps)), _Rows(rows, eps), len(eps))

    def _in_shape(self, begin: Callable[[S], Any], rows: S, n: int) -> Any:
        """The attack's first states. How many rows begin together is chance, so their shape must not matter.

        On a CPU it matters for a lone row, whose reductions are split over threads: it is doubled. Other devices reduce
        rows in an order that depends on their number: there it is always a whole block.
        """
        device = self.oracle.classifier.device
        cpu = device.type == "cpu"
        room = 2 if cpu else self.oracle.block
        if n == room or (cpu and n > 1):
            return begin(rows)
        parts = []
        for first in range(0, n, room):
            index = torch.arange(first, first + room, device=device).clamp(max=n - 1)
            parts.append(begin(take(rows, index)))
        return head(concat(parts), n)

    def _rows(self, e: Entry) -> Batch:
        ranks, restarts = _attempts(self.attempts, e.at.device)
        key = rng.fold(rng.fold(e.key, ranks[e.attempt]), restarts[e.attempt])
        return Batch(e.x, e.y, key, e.target, e.start, restarts[e.attempt], e.id)


@table
def _attempts(attempts: tuple[Attempt, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ranks and restarts of the legs."""
    return torch.tensor([g.rank for g in attempts], device=device), torch.tensor(
        [g.restart for g in attempts], device=device
    )


def _fused(move: Callable[[Slots, Response], Slots], note: Callable[[str], None]) -> Callable[[Slots, Response], Slots]:
    """The same function compiled; called once as it is before, so that the tables it looks up exist."""
    compiled, refusals = fused(move), Refusals(note)
    tables: list[bool] = []

    def run(s: Slots, a: Response) -> Slots:
        if not tables:
            move(s, a)
            tables.append(True)
        return refusals.attempt(None, lambda: compiled(s, a), lambda: move(s, a))

    return run
