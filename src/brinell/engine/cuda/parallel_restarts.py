"""Runs side by side that a sample would make one after another, where the attack has such."""

from dataclasses import dataclass, replace

from torch import Tensor

from brinell.core.attack import Branching, branching
from brinell.engine.cuda.speculative import Ahead
from brinell.engine.micro_batch import Lane
from brinell.engine.slots import Entry
from brinell.ops.rowwise import overwrite_rows, take


@dataclass
class Branches(Ahead):
    """The same for an attack with branches: what comes before them is a sample's first leg, and each is one more.

    How many there are is known when the first leg has ended. The longest samples decide how long an evaluation takes,
    and these are the ones with many branches.
    """

    def __post_init__(self) -> None:
        self._seeds = self._attack.unseeded(self.work.y)
        super().__post_init__()

    @property
    def _attack(self) -> Branching:
        attack = branching(self.engine.attack)
        assert attack is not None
        return attack

    def _note(self, lane: Lane, ended: list[int]) -> None:
        """Also see which branches the samples want whose first legs have ended."""
        places = self.places[id(lane)]
        first = [i for i in ended if places[i][1] == 0]
        if first:
            seeds = lane.part(first, lambda s: self._attack.seed(s.state))
            samples = [places[i][0] for i in first]
            overwrite_rows(self._seeds, self.index(samples), seeds)
            wanted: list[int] = self._attack.branches(seeds).tolist()
            for sample, more in zip(samples, wanted, strict=True):
                self.courses[sample].end = 1 + more
        super()._note(lane, ended)

    def _entry(self, attempts: list[tuple[int, int]], live: Tensor) -> Entry:
        entry = super()._entry([(i, 0) for i, _ in attempts], live)
        which = self.index([attempt - 1 for _, attempt in attempts])
        return replace(entry, seed=take(self._seeds, entry.at), which=which)
