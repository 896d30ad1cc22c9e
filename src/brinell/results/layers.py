"""The evidence of a short plan in layers: a black-box search on all survivors, the full plan near the boundary.

The third layer, the full plan on a random sample, is in `audit_bound`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.audit_bound import TOO_MUCH, Audit
from brinell.results.format.manifest import PlanRecord
from brinell.results.format.schema import margin_left
from brinell.results.row_queries import Ids, StageResult

if TYPE_CHECKING:
    from brinell.results.run import Run

# In the first ring all stages of the full plan attack; each further ring reaches twice as far. Beyond the last one are
# all survivors. A first ring narrower than `SECOND` is followed by one that ends there.
RINGS, SECOND = 4, 0.05
# The full plan goes on to the next ring if it broke more than this share of all samples in a ring, and more than one
# sample in all rings.
RING_TOLERATED, TOLERATED = 1e-4, 1


@dataclass(frozen=True)
class Ring:
    """The survivors of the short plan with a share from `low` to `high` of their clean margin left.

    The full plan attacked `attacked` of these `survivors` and broke `broken`.
    """

    low: float
    high: float
    survivors: int
    attacked: int
    broken: int

    @property
    def complete(self) -> bool:
        """Whether the full plan attacked every survivor of the ring."""
        return self.attacked == self.survivors

    def __str__(self) -> str:
        which = f"{100 * self.low:.0f} to {100 * self.high:.0f} %" if self.low else f"less than {100 * self.high:.0f} %"
        whom = f"{self.attacked:,} of {self.survivors:,} survivors with {which} of their margin left"
        return f"{whom}, {self.broken:,} broken"


@dataclass(frozen=True)
class Layers:
    """What the layers found, of `n` samples: the short black-box attacks (`search`) and the full plan by `rings`.

    `near` are the stages of the full plan that attack further from the boundary than the others.

    >>> rings = Ring(0.0, 0.05, 4, 4, 2), Ring(0.05, 0.1, 6, 0, 0)
    >>> Layers(500, (StageResult("search", 300, 0),), rings).reach
    0.1
    >>> Layers(500, (StageResult("search", 300, 5),), rings).reach
    inf
    """

    n: int
    search: tuple[StageResult, ...]
    rings: tuple[Ring, ...]
    audit: Audit | None = None
    near: tuple[StageResult, ...] = ()

    @property
    def doubt(self) -> str:
        """Why the full plan must attack all survivors, as the beginning of a sentence; empty if it need not."""
        for stage in self.search:
            if stage.broken > max(1.0, TOO_MUCH * self.n):
                return f"The short black-box search {stage.attack} broke {stage.broken} of {stage.attacked} survivors"
        if self.audit is not None and self.audit.objects:
            return f"The full plan broke {self.audit.found} of {self.audit.audited} audited survivors"
        if self.rings and self._furthest == len(self.rings) - 1:
            return f"The full plan broke survivors far from the boundary ({self.rings[-1]})"
        return ""

    @property
    def _furthest(self) -> int:
        """The number of the last ring in which more broke than is tolerated; −1 if in none."""
        if sum(ring.broken for ring in self.rings) <= TOLERATED:
            return -1
        return max((k for k, ring in enumerate(self.rings) if ring.broken > RING_TOLERATED * self.n), default=-1)

    @property
    def reach(self) -> float:
        """How far the full plan must go: to survivors with less than this share of their margin left (inf: to all).

        It goes one ring further than it breaks samples.
        """
        if self.doubt:
            return math.inf
        return self.rings[self._furthest + 1].high if self.rings else 0.0

    @property
    def complete(self) -> bool:
        """Whether the full plan went as far as it must."""
        if self.reach == math.inf:
            return self.audit is not None and self.audit.complete
        return all(ring.complete for ring in self.rings if ring.high <= self.reach)

    @property
    def lines(self) -> list[str]:
        """The layers as text, one line each."""
        found = [
            f"{s.attack}, a short black-box attack: {s.attacked:,} attacked, {s.broken:,} broken"
            for s in self.search
            if s.attacked
        ]
        found += [
            f"{s.attack}, near the boundary: {s.attacked:,} attacked, {s.broken:,} broken"
            for s in self.near
            if s.attacked
        ]
        return found + [f"full plan on {ring}" for ring in self.rings if ring.attacked and ring.high <= self.reach]


def layers(run: "Run") -> Layers | None:
    """Return the layers of a Run; None if its plan has no audit."""
    plan, table = run.identity.plan, run.numbers()
    if not plan.audit_stages:
        return None
    search = tuple(row_queries.stage(table, s.name) for s in plan.main_stages[1:] if s.black_box)
    widths = [stage.near for stage in plan.audit_stages if stage.near]
    near = tuple(row_queries.stage(table, s.name) for s in plan.audit_stages if s.near and s.near > min(widths))
    return Layers(run.clean_accuracy.n, search, _rings(run), run.audit, near)


def _rings(run: "Run") -> tuple[Ring, ...]:
    plan, table = run.identity.plan, run.numbers()
    edges = ring_edges(plan)
    if not edges:
        return ()
    ids = row_queries.survivors(table, [s.name for s in plan.main_stages])
    left, standing = left_of_margins(run, ids), run.survivors()
    covered = standing
    for stage in plan.audit_stages:
        covered = np.intersect1d(covered, row_queries.ids_of(table)[row_queries.is_attack(table, stage.name)])
    broken, attacked = ~np.isin(ids, standing), np.isin(ids, covered)
    found, low = [], 0.0
    for k, high in enumerate(edges):
        here = (left >= low if k else np.full(len(ids), True)) & (left < high)
        hit = int((here & broken).sum())
        found.append(Ring(low, high, int(here.sum()), hit + int((here & attacked).sum()), hit))
        low = high
    return tuple(found)


def ring_edges(plan: PlanRecord) -> tuple[float, ...]:
    """Return the outer edges of the rings, the smallest first; none if no stage attacks near the boundary."""
    widths = [stage.near for stage in plan.audit_stages if stage.near]
    if not widths:
        return ()
    first = min(widths)
    if first >= SECOND:
        return tuple(first * 2**k for k in range(RINGS))
    return (first, *(SECOND * 2**k for k in range(RINGS)))


def left_of_margins(run: "Run", ids: Ids) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return for each of the sorted `ids` the smallest share of its clean margin that the short plan left."""
    table = run.margins()
    names = pa.array([s.name for s in run.identity.plan.main_stages], pa.string())
    table = table.filter(pc.is_in(table["attack"], names))
    at, left = row_queries.ids_of(table), margin_left(table)
    keep = np.isin(at, ids)
    smallest = np.full(len(ids), np.inf)
    np.minimum.at(smallest, np.searchsorted(ids, at[keep]), left[keep])
    return smallest
