"""The audit of a short plan: the full plan attacks random survivors, to bound how many the short plan missed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.finding import n_samples
from brinell.results import row_queries
from brinell.results.format.schema import AUDIT, flagged
from brinell.results.row_queries import Cost
from brinell.results.statistics import Proportion, hidden

if TYPE_CHECKING:
    from brinell.results.run import Run

# A short plan that missed more than this share of all samples (with 95 % confidence) is not as strong as the full plan.
# A single sample is tolerated.
TOO_MUCH = 0.001


@dataclass(frozen=True)
class Audit:
    """The result of an audit, in numbers of samples: of `n` samples, `survivors` survive the short plan.

    The full plan, whose stages are `attacks`, attacked `audited` of these survivors and broke `found` of them. `rest`
    is the number of unbroken samples that at least one of these stages has not attacked. `cost` is the cost of the
    full plan.

    >>> print(Audit(survivors=480, audited=60, found=0, n=1000, rest=420, cost=Cost(1, 1, 0.0, 60)))
    60 of 480 survivors attacked by the full plan, 0 broken: it would break at most 21 more (2.1 points, 95 %)
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
        """Upper 95 % bound on how many of the `rest` samples the full plan would break."""
        return min(hidden(self.found, self.audited, self.survivors)[1] - self.found, self.rest)

    @property
    def bound(self) -> float:
        """`missed` / `n`: by how much the robust accuracy may fall if the full plan attacks every survivor."""
        return self.missed / max(self.n, 1)

    @property
    def at_least(self) -> float:
        """Lower 95 % bound on the share of all samples that survive the short plan but not the full plan."""
        return hidden(self.found, self.audited, self.survivors)[0] / max(self.n, 1)

    @property
    def objects(self) -> bool:
        """Whether the audit contradicts the short plan: not `complete`, and `at_least` exceeds 0.1 % and 1 / `n`."""
        return bool(self.rest) and self.at_least * self.n > max(1.0, TOO_MUCH * self.n)

    def too_small(self, accuracy: Proportion) -> bool:
        """Return whether the audit has too few samples: `bound` exceeds half of the interval of `accuracy`."""
        return self.bound > (accuracy.high - accuracy.low) / 2

    @property
    def complete(self) -> bool:
        """Whether all attacks of the full plan attacked every unbroken sample."""
        return not self.rest

    @property
    def _uninformative(self) -> bool:
        """Whether the bound is larger than the sampling error, so that the sample says little."""
        return self.too_small(Proportion(self.survivors - self.found, max(self.n, 1)))

    def __str__(self) -> str:
        if not self.survivors:
            return "no survivor to draw"
        whom = n_samples(self.survivors, kind="survivor")
        if not self.audited and not self.complete:
            return f"none of {whom} drawn at random for the full plan"
        head = f"{self.audited:,} of {whom} attacked by the full plan, {self.found:,} broken"
        if self.complete:
            return f"{head}; then it attacked all others"
        most = f"at most {self.missed:,} more"
        if self._uninformative:
            return f"{head}: a spot check, which alone would leave {most.replace(' more', '')} open (95 %)"
        return f"{head}: it would break {most} ({100 * self.bound:.1f} points, 95 %)"


def audit(run: "Run") -> Audit | None:
    """Return the audit of a Run; None if its plan has no audit."""
    full = [stage.name for stage in run.identity.plan.audit_stages]
    if not full:
        return None
    short = [stage.name for stage in run.identity.plan.main_stages]
    table = run.numbers()
    short_survivors = row_queries.survivors(table, short)
    ids = row_queries.ids_of(table)
    survivors = run.survivors()
    covered = survivors
    for name in full:
        covered = np.intersect1d(covered, ids[row_queries.is_attack(table, name)])
    # Drawn, and either broken or attacked by the whole full plan: an interrupted audit has fewer.
    drawn = np.intersect1d(np.unique(ids[flagged(table, AUDIT)]), short_survivors)
    audited = np.union1d(np.setdiff1d(drawn, survivors), np.intersect1d(drawn, covered))
    rows = table.filter(pc.is_in(table["attack"], pa.array(full, pa.string())))
    return Audit(
        survivors=len(short_survivors),
        audited=len(audited),
        found=len(np.setdiff1d(audited, survivors)),
        n=run.clean_accuracy.n,
        rest=len(survivors) - len(covered),
        cost=row_queries.cost(rows, over=len(np.unique(row_queries.ids_of(rows)))),
        attacks=tuple(full),
    )
