"""Check which samples every attack attacked, which samples the audit drew, and how several passes judged."""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
import torch

from brinell.evaluation.audit import in_audit
from brinell.evaluation.rows import NON_FINITE
from brinell.finding import Finding
from brinell.results import row_queries
from brinell.results.format.manifest import StageRecord
from brinell.results.format.schema import AUDIT, Evidence, counted, flagged, is_evidence
from brinell.results.layers import left_of_margins, ring_edges
from brinell.results.row_queries import Ids
from brinell.results.run import Run
from brinell.verification.certificates import certificate_contradictions
from brinell.verification.consistency import contradictions, rows_that
from brinell.verification.result import objection


def all_contradictions(run: Run, whole: bool = True) -> list[Finding]:
    """Return a finding for every contradiction between rows, and between rows and manifest; see `consistency` too.

    With `whole=False`, missing rows are allowed.

    >>> [f.message for f in all_contradictions(Run.open("tests/results/golden_run_v1"))]  # all attacks on all samples
    ['apgd-t attacked 1 samples that were broken or wrong, such as sample 5.']
    """
    found = contradictions(run, whole)
    found += [objection("attacked samples", message) for message in _attacked(run, whole)]
    found += [objection(name, message) for name, rule in RULES.items() for message in rule(run)]
    return found + certificate_contradictions(run)


def drawn(run: Run, stage: StageRecord, ids: Ids) -> npt.NDArray[np.bool_]:
    """Return a mask of the samples that an audit stage draws; seed and id alone decide it."""
    return np.asarray(in_audit(run.identity.seed or 0, torch.from_numpy(ids.copy()), stage.share or 0.0))


def _attacked(run: Run, whole: bool) -> Iterable[str]:
    """Report stages that did not attack exactly the samples that stood: an audit attacks those drawn, or all."""
    table, survivors = run.numbers(), run.survivors()
    ids, fell = row_queries.ids_of(table), counted(table)
    standing = correct = row_queries.survivors(table, [])
    for stage in run.identity.plan.stages:
        rows = row_queries.is_attack(table, stage.name)
        here, expected = np.unique(ids[rows]), correct if run.identity.individual else standing
        extra, missing = np.setdiff1d(here, expected), np.setdiff1d(expected, here)
        if stage.is_audit:
            missing = np.setdiff1d(_due(run, stage, expected, here), here)
        else:
            missing = np.setdiff1d(missing, survivors)  # survivors have a rule of their own
        if len(extra):
            yield f"{stage.name} attacked {len(extra)} samples that were broken or wrong, such as sample {extra[0]}."
        if len(missing) and whole:
            yield f"{stage.name} did not attack {len(missing)} samples that stood, such as sample {missing[0]}."
        standing = np.setdiff1d(standing, ids[rows & fell])


def _due(run: Run, stage: StageRecord, expected: Ids, here: Ids) -> Ids:
    """Return the samples that an audit stage must have attacked, given the samples `here` that it did attack.

    These are the samples drawn and those near the boundary, as far as the smallest ring that includes all of `here`;
    after an escalation they are all that stood.
    """
    left, chosen = left_of_margins(run, expected), drawn(run, stage, expected)
    for reach in (0.0, *ring_edges(run.identity.plan)):
        due = expected[chosen | (left < max(reach, stage.near or 0.0))]
        if not len(np.setdiff1d(np.intersect1d(here, expected), due)):
            return due
    return expected


def _audit_flags(run: Run) -> Iterable[str]:
    """Report rows with the flag of the audit that the audit does not draw, and rows that lack the flag."""
    table = run.numbers()
    ids, due = row_queries.ids_of(table), np.zeros(table.num_rows, dtype=bool)
    for stage in run.identity.plan.audit_stages:
        due |= row_queries.is_attack(table, stage.name) & drawn(run, stage, ids)
    wrong = due != flagged(table, AUDIT)
    yield from rows_that("are flagged as audited and were not drawn, or were drawn and are not flagged", table, wrong)


def _judged(run: Run) -> Iterable[str]:
    """Report rows whose outcome does not follow from the judging passes, or that have another number of passes."""
    table, draws = run.rows(), run.identity.plan.draws
    if draws == 1:
        judged = np.asarray(pc.is_valid(table["judged"]), dtype=bool)
        yield from rows_that("were judged by several passes, but the plan has one", table, judged)
        return
    passes = table["judged"].to_pylist()
    other = np.array([judged is None or len(judged) != draws for judged in passes], dtype=bool)
    yield from rows_that(f"were not judged by {draws} passes, as the plan says", table, other)
    most = np.array([2 * sum(map(bool, judged or [])) > draws for judged in passes], dtype=bool)
    broken, clean = np.asarray(table["broken"], dtype=bool), is_evidence(table, Evidence.CLEAN)
    wrong = (clean & ~broken & (most | flagged(table, NON_FINITE))) | (~clean & broken & ~most)
    yield from rows_that("have an outcome that their judging passes contradict", table, wrong & ~other)


def _leftovers(run: Run) -> Iterable[str]:
    """Report rows that are not broken and have values that only broken rows have."""
    table = run.rows()
    broken = np.asarray(table["broken"], dtype=bool)
    marks = [np.asarray(pc.is_valid(table[name]), dtype=bool) for name in ("first_broken_at", "verified_8bit")]
    yield from rows_that("are not broken but have values of broken rows", table, ~broken & np.any(marks, axis=0))


def _parts(run: Run) -> Iterable[str]:
    """Report a merged Run whose fingerprint or number of samples does not follow from its parts."""
    data = run.identity.data
    if not data.sources:
        return
    prints = sorted(str(source.get("fingerprint")) for source in data.sources)
    if hashlib.sha256("\n".join(prints).encode()).hexdigest() != data.fingerprint:
        yield "The data fingerprint does not follow from the fingerprints of the merged parts."
    sizes = [n if isinstance(n := source.get("n"), int) else 0 for source in data.sources]
    if run.finished and not max(sizes) <= (data.n or 0) <= sum(sizes):
        yield f"The Run has {data.n} samples, but its merged parts have {sum(sizes)}."


RULES: dict[str, Callable[[Run], Iterable[str]]] = {
    "audited samples": _audit_flags,
    "judging passes": _judged,
    "values of unbroken rows": _leftovers,
    "merged parts": _parts,
}
