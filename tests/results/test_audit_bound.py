"""The audit of a short plan and the effort of a strong one, on Runs of a few samples."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.results.conftest import make_manifest, outcomes

from brinell.results import ROWS, Run, Writer
from brinell.results.format.resume import StoredRows

STAGES = [
    {"name": "one", "attack": {}, "hash": "oneone", "needs": "gradients"},
    {"name": "two", "attack": {}, "hash": "twotwo", "needs": "gradients", "share": 0.5},
]


def audited_run(path: Path, words: dict[int, str], drawn: tuple[int, ...]) -> Run:
    rows = [row for sample, word in words.items() for row in outcomes(sample, word)]
    rows = [{**row, "flags": ["audit"]} if row["sample_id"] in drawn else row for row in rows]
    with Writer.create(path, make_manifest(plan__stages=STAGES, plan__strength="audited")) as writer:
        writer.append(pa.Table.from_pylist(rows, schema=ROWS))
        writer.update(finished=True)
    return Run.open(path)


def test_an_audit_bounds_what_the_short_plan_missed(tmp_path: Path) -> None:
    words = dict.fromkeys(range(8), ".. ") | {8: "..x", 9: "...", 10: ".x", 11: "x"}
    run = audited_run(tmp_path, words, drawn=(8, 9))
    audit = run.audit
    assert audit is not None
    assert (audit.survivors, audit.audited, audit.found, audit.rest, audit.n) == (10, 2, 1, 8, 12)
    assert (audit.missed, audit.attacks, audit.complete) == (8, ("two",), False)
    assert audit.bound == 8 / 12 and audit.at_least == 1 / 12 and not audit.objects
    assert audit.too_small(run.robust_accuracy)
    assert (audit.cost.forwards, audit.cost.samples) == (10, 2)
    assert "at most 8 open" in str(run) and "full plan (two)" in run.sentence()
    reasons = " ".join(run.verdict.reasons)
    assert "only 4 gradients on some survivors" in reasons
    assert "audit is too small" in reasons


def test_an_audit_of_every_survivor_leaves_nothing_unknown(tmp_path: Path) -> None:
    run = audited_run(tmp_path, {0: "...", 1: "..x", 2: ".x"}, drawn=(0, 1))
    assert run.audit is not None
    assert run.audit.complete and run.audit.missed == 0 and not run.audit.objects
    assert str(run.audit).endswith("; then it attacked all others")


def test_an_audit_that_breaks_much_objects(tmp_path: Path) -> None:
    words = dict.fromkeys(range(10), ".. ") | dict.fromkeys(range(10, 20), "..x")
    run = audited_run(tmp_path, words, drawn=tuple(range(10, 20)))
    assert run.audit is not None and run.audit.objects
    assert any("broke 10 of 10 audited survivors" in reason for reason in run.verdict.reasons)


@pytest.mark.parametrize(("ids", "others"), [([0, 1], 1), ([], 3), ([0, 1, 2, 3], 0)])
def test_samples_stored_besides_these_are_counted(tmp_path: Path, ids: list[int], others: int) -> None:
    run = audited_run(tmp_path, {0: "...", 1: "..x", 2: ".x"}, drawn=())
    assert StoredRows(run.path).count_other_samples(ids) == others
