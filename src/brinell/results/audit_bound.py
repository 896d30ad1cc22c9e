"""What a plan that saves passes may have missed, from survivors attacked at full strength at random."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.format.schema import AUDIT, flagged
from brinell.results.row_queries import Cost
from brinell.results.statistics import Proportion, hidden

if TYPE_CHECKING:
    from brinell.results.run import Run

# So many of all samples, missed for certain (95 %), are too much for a plan that promises the full plan's number; a
# single one never is, since one can be missed by any attack.
TOO_MUCH = 0.001


@dataclass(frozen=True)
class Audit:
    """Survivors of the short plan, how many of them were attacked at full strength, and how many of those fell.

    `n` are all samples of the Run; `rest` are the survivors that were never attacked at full strength, by `attacks`.

    >>> print(Audit(survivors=480, audited=60, found=0, n=1000, rest=420, cost=Cost(1, 1, 0.0, 60)))
    60 of 480 survivors attacked at full strength, 0 fell: at most 21 more (2.1 points, 95 %) may have been missed
    """

    survivors: int
    audited: int
    found: int
    n: int
    rest: int
    cost: Cost
    attacks: tuple[str, ...] = ()

    @property
    def missed(self) -> int:
        """Upper 95 % bound on the survivors that still stand though the full plan would break them."""
        if not self.rest:
            return 0
        return min(hidden(self.found, self.audited, self.survivors)[1] - self.found, self.rest)

    @property
    def bound(self) -> float:
        """The same as a share of all samples: how much lower the full plan's robust accuracy may be."""
        return self.missed / max(self.n, 1)

    @property
    def at_least(self) -> float:
        """Lower 95 % bound on the share of all samples that the short plan missed, those found included."""
        return hidden(self.found, self.audited, self.survivors)[0] / max(self.n, 1)

    @property
    def objects(self) -> bool:
        """Whether the short plan is shown to have missed too much, and the rest was not attacked."""
        return bool(self.rest) and self.at_least * self.n > max(1.0, TOO_MUCH * self.n)

    def too_small(self, accuracy: Proportion) -> bool:
        """Whether more may have been missed than the robust accuracy is uncertain by anyway."""
        return self.bound > (accuracy.high - accuracy.low) / 2

    @property
    def complete(self) -> bool:
        """Whether every survivor was attacked at full strength, so that nothing is left to chance."""
        return not self.rest

    def __str__(self) -> str:
        head = f"{self.audited:,} of {self.survivors:,} survivors attacked at full strength, {self.found:,} fell"
        if self.complete:
            return f"{head}; then all the others were"
        return f"{head}: at most {self.missed:,} more ({100 * self.bound:.1f} points, 95 %) may have been missed"


def audit(run: "Run") -> Audit | None:
    """The audit of a Run whose plan has one; None for other plans."""
    full = [stage.name for stage in run.identity.plan.audit_stages]
    if not full:
        return None
    short = [stage.name for stage in run.identity.plan.main_stages]
    table = run.numbers()
    left = row_queries.survivors(table, short)
    ids = row_queries.ids_of(table)
    standing = run.survivors()
    covered = standing
    for name in full:
        covered = np.intersect1d(covered, ids[row_queries.is_attack(table, name)])
    # Chosen, and either fallen or attacked by all of it: an audit that was interrupted has looked at fewer.
    chosen = np.intersect1d(np.unique(ids[flagged(table, AUDIT)]), left)
    audited = np.union1d(np.setdiff1d(chosen, standing), np.intersect1d(chosen, covered))
    rows = table.filter(pc.is_in(table["attack"], pa.array(full, pa.string())))
    return Audit(
        survivors=len(left),
        audited=len(audited),
        found=len(np.setdiff1d(audited, standing)),
        n=run.clean_accuracy.n,
        rest=len(standing) - len(covered),
        cost=row_queries.cost(rows, over=len(np.unique(row_queries.ids_of(rows)))),
        attacks=tuple(full),
    )
