"""Parallel restarts: run the restarts of a sample's attack side by side instead of one after another."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from brinell.engine.cuda.graphs import DeviceMicroBatch
from brinell.engine.cuda.speculative import SpeculativeScheduler
from brinell.engine.loop import Engine
from brinell.engine.slots import Begin, Entry, Slots
from brinell.ops.rowwise import overwrite_rows, take, where_rows


@dataclass(frozen=True)
class RestartEntry(Entry):
    """Samples that enter slots at internal restart `which` (−1: at the part of the attack before its restarts).

    `seed` is what the part before the restarts returned (`Attack.restart_seed`).
    """

    seed: Any
    which: Tensor


def begin_restarts(e: Engine, entry: Entry) -> Slots:
    """Return slots at the start of a restart (`which` ≥ 0) or of the part of the attack before its restarts."""
    assert isinstance(entry, RestartEntry)
    slots, attack = e.begin(entry), e.attack
    rest = replace(entry, batch=slots.batch, which=entry.which.clamp(min=0))
    restarts = e.first_states(rest, lambda r: attack.restart(r.seed, r.which, r.batch, replace(e.ball, eps=r.eps)))
    return replace(slots, state=where_rows(entry.which >= 0, restarts, attack.before_restarts(slots.state)))


@dataclass
class ParallelRestarts(SpeculativeScheduler):
    """A scheduler whose attempts are parts of one attack: first the part before its restarts, then each restart.

    The number of restarts is known when the first part has ended. Samples with many restarts take longest, so they
    determine the duration of an evaluation.
    """

    def __post_init__(self) -> None:
        self._seeds = self.engine.attack.no_seed(self.samples.batch.y)
        super().__post_init__()

    def begin(self) -> Begin:
        return partial(begin_restarts, self.engine)

    def _finish(self, micro_batch: DeviceMicroBatch, ended: list[int]) -> None:
        """End the attempts in the slots `ended`; store the seed and the restart count of each first attempt."""
        attack, places = self.engine.attack, self.places[id(micro_batch)]
        first = [i for i in ended if places[i][1] == 0]
        if first:
            seeds = micro_batch.part(first, lambda s: attack.restart_seed(s.state))
            positions = [places[i][0] for i in first]
            overwrite_rows(self._seeds, self.index(positions), seeds)
            counts: list[int] = attack.restart_count(seeds).tolist()
            for position, count in zip(positions, counts, strict=True):
                self.under_way[position].end = 1 + count
        super()._finish(micro_batch, ended)

    def _entry(self, attempts: list[tuple[int, int]], live: Tensor) -> Entry:
        e = super()._entry([(i, 0) for i, _ in attempts], live)
        which = self.index([attempt - 1 for _, attempt in attempts])
        return RestartEntry(e.at, e.attempt, e.live, e.batch, e.eps, seed=take(self._seeds, e.at), which=which)
