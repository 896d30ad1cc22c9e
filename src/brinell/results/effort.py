"""Whether a plan that is called strong did what a strong one does: what it calls itself proves nothing."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.format.schema import AUDIT, flagged

if TYPE_CHECKING:
    from brinell.results.run import Run

# Less than this was done to a sample by no ensemble that is called strong: the steps of the weakest attacks that are
# still reported (Madry et al. 2018: 20), and queries of random search that come to nothing below.
STEPS, QUERIES = 20, 50


def shortfalls(run: "Run") -> Iterable[str]:
    """What a plan called "standard", or the audit of one called "audited", lacks, as ends of a sentence.

    Attacks of a manifest that does not tell what they need (older Runs) are not judged, and where nothing stands there
    is nothing to doubt.
    """
    plan, audit = run.identity.plan, run.identity.plan.audited
    if plan.strength != "standard" and not audit:
        return
    stages = [s for s in (plan.audit_stages if audit else plan.main_stages) if s.requires is not None]
    standing = _standing(run, audit)
    if not stages or not len(standing):
        return
    following = [s.name for s in stages if not s.black_box]
    asking = [s.name for s in stages if s.black_box]
    steps = _least(run, following, "backwards", standing)
    if not following:
        yield "none of its attacks follows gradients"
    elif steps < STEPS:
        yield f"some samples it calls robust were attacked with {steps} gradients in all (at least {STEPS} expected)"
    # The attacks of an audit answer for what a first stage missed; on randomised models every attack is one more draw.
    if audit or plan.draws > 1:
        return
    queries = _least(run, asking, "forwards", standing)
    if not asking:
        yield "it has no attack without gradients, so that masked gradients would go unnoticed"
    elif queries < QUERIES:
        yield f"its attacks without gradients asked {queries} times in all (at least {QUERIES} expected)"


def _standing(run: "Run", audit: bool) -> row_queries.Ids:
    """The samples that count as robust; of an audit those it looked at."""
    table = run.numbers()
    return (
        np.intersect1d(run.survivors(), row_queries.ids_of(table)[flagged(table, AUDIT)]) if audit else run.survivors()
    )


def _least(run: "Run", attacks: Sequence[str], column: str, ids: row_queries.Ids) -> int:
    """The fewest passes of these attacks that one of the samples got."""
    table = run.numbers()
    mine = np.asarray(pc.is_in(table["attack"], value_set=pa.array(list(attacks), pa.string())), dtype=bool)
    at, passes = row_queries.ids_of(table)[mine], np.asarray(table[column], dtype=np.int64)[mine]
    keep = np.isin(at, ids)
    total = np.zeros(len(ids), dtype=np.int64)
    np.add.at(total, np.searchsorted(ids, at[keep]), passes[keep])
    return int(total.min())
