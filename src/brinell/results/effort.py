"""Check that a plan that is called strong spent the effort of a strong plan."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.format.schema import AUDIT, flagged

if TYPE_CHECKING:
    from brinell.results.run import Run

# The least effort per sample of an ensemble that is called strong: the steps of the weakest attacks still reported
# (Madry et al. 2018: 20), and the queries below which random search finds nothing.
STEPS, QUERIES = 20, 50


def shortfalls(run: "Run") -> Iterable[str]:
    """Yield what a "standard" plan, or the audit of an "audited" plan, lacks: each the end of a sentence.

    Older manifests do not say what their attacks require; such attacks are not judged. Without survivors there is
    nothing to judge.
    """
    plan, audit = run.identity.plan, run.identity.plan.audited
    if plan.strength != "standard" and not audit:
        return
    stages = [s for s in (plan.audit_stages if audit else plan.main_stages) if s.requires is not None]
    survivors = _survivors(run, audit)
    if not stages or not len(survivors):
        return
    gradient = [s.name for s in stages if not s.black_box]
    black_box = [s.name for s in stages if s.black_box]
    steps = _least_effort(run, gradient, "backwards", survivors)
    if not gradient:
        yield "none of its attacks uses gradients"
    elif steps < STEPS:
        yield f"some samples it calls robust were attacked with {steps} gradients in all (at least {STEPS} expected)"
    # An audit checks what the first stage missed; on a randomised model every attack is one more draw.
    if audit or plan.draws > 1:
        return
    queries = _least_effort(run, black_box, "forwards", survivors)
    if not black_box:
        yield "it has no attack without gradients, so masked gradients would go unnoticed"
    elif queries < QUERIES:
        yield f"its attacks without gradients made {queries} queries in all (at least {QUERIES} expected)"


def _survivors(run: "Run", audit: bool) -> row_queries.Ids:
    """Return the samples counted as robust; for an audit, those it drew."""
    table = run.numbers()
    return (
        np.intersect1d(run.survivors(), row_queries.ids_of(table)[flagged(table, AUDIT)]) if audit else run.survivors()
    )


def _least_effort(run: "Run", attacks: Sequence[str], column: str, ids: row_queries.Ids) -> int:
    """Return the smallest number of passes that these attacks spent on one of the samples."""
    table = run.numbers()
    chosen = np.asarray(pc.is_in(table["attack"], value_set=pa.array(list(attacks), pa.string())), dtype=bool)
    at, passes = row_queries.ids_of(table)[chosen], np.asarray(table[column], dtype=np.int64)[chosen]
    keep = np.isin(at, ids)
    total = np.zeros(len(ids), dtype=np.int64)
    np.add.at(total, np.searchsorted(ids, at[keep]), passes[keep])
    return int(total.min())
