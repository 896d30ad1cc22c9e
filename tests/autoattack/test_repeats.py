"""Mean and deviation over the judging passes, from rows made by hand."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from brinell.cli._shared.run_output import print_run
from brinell.results import ROWS, Run, Writer, new_manifest, repeated

STAGES = ("one", "two")
IDENTITY: dict[str, Any] = {
    "threat": {"norm": "Linf", "eps": 0.1, "eps_text": "0.1", "box": [0, 1]},
    "plan": {"name": "pair", "strength": "standard", "draws": 4, "stages": [{"name": n, "hash": n} for n in STAGES]},
    "model": {"name": "net", "classes": 2},
    "data": {"name": "toys", "n": None},
    "seed": 0,
}


def row(sample: int, attack: str, word: str | None, broken: bool | None = None) -> dict[str, Any]:
    """A row that fooled the passes marked x."""
    judged = None if word is None else [c == "x" for c in word]
    fell = broken if broken is not None else judged is not None and 2 * sum(judged) > len(judged)
    return {
        "sample_id": sample, "x_sha256": "", "label": 0, "clean_pred": 0, "clean_margin": -1.0, "attack": attack,
        "attack_hash": attack, "seed": 0, "broken": fell, "verified": True if fell else None, "distance": 0.0,
        "forwards": 1, "backwards": 1, "seconds": 0.0, "precision": "float32", "device": "cpu", "judged": judged,
        "flags": [],
    }  # fmt: skip


def run_of(path: Path, rows: list[dict[str, Any]], drop: bool = False) -> Run:
    table = pa.Table.from_pylist(rows, schema=ROWS)
    if drop:
        table = table.drop_columns(["judged"])
    with Writer.create(path, new_manifest(IDENTITY, {})) as writer:
        hits = [r["sample_id"] for r in rows if r["broken"] and r["attack"] != "clean"]
        writer.append(table, np.array(hits, dtype=np.int64), np.zeros((len(hits), 2), np.float32))
        writer.update(finished=True)
    return Run.open(path)


def test_by_hand(tmp_path: Path) -> None:
    rows = [
        row(1, "clean", "...."), row(1, "one", "x..."), row(1, "two", ".xx."),  # two: fooled in passes 2 and 3
        row(2, "clean", ".x.."), row(2, "one", "xxx."),  # one: 1, 2, 3
        row(3, "clean", "xxxx"),  # never attacked
        row(4, "clean", "...x"), row(4, "one", "...."), row(4, "two", "...."),  # the clean row itself: 4
    ]  # fmt: skip
    run = run_of(tmp_path / "run", rows)
    found = repeated(run)
    assert found is not None
    clean, robust = np.array([3, 2, 3, 2]) / 4, np.array([2, 1, 1, 2]) / 4
    assert found.clean.mean == pytest.approx(clean.mean())
    assert found.clean.deviation == pytest.approx(clean.std(ddof=1))
    assert found.robust.mean == pytest.approx(robust.mean())
    assert found.robust.deviation == pytest.approx(robust.std(ddof=1))
    assert (found.robust.passes, found.robust.n) == (4, 4)
    assert run.repeats == found
    # One attack alone: of "one" sample 1 is fooled in pass 1; of "two" sample 2 keeps its clean row, fooled in pass 2.
    alone = [repeated(run, [name]) for name in STAGES]
    expected = [np.array([1, 2, 2, 2]) / 4, np.array([3, 1, 2, 2]) / 4]
    for one, accuracies in zip(alone, expected, strict=True):
        assert one is not None and one.clean == found.clean
        assert one.robust.mean == pytest.approx(accuracies.mean())
        assert one.robust.deviation == pytest.approx(accuracies.std(ddof=1))


def test_of_equals_the_first_counts(tmp_path: Path) -> None:
    rows = [row(1, "clean", "x..."), row(1, "one", ".x.."), row(1, "two", "..x."), row(2, "clean", "....")]
    found = repeated(run_of(tmp_path / "run", rows))
    assert found is not None
    assert found.robust == found.clean


def test_a_point_outside_the_threat_does_not_count(tmp_path: Path) -> None:
    """It fooled most passes and was not called broken."""
    rows = [row(1, "clean", "...."), row(1, "one", "xxxx", broken=False), row(1, "two", "x...")]
    found = repeated(run_of(tmp_path / "run", rows))
    assert found is not None
    assert found.robust.mean == pytest.approx(0.75)


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [row(i, a, w) for i in (1, 2, 3) for a, w in (("clean", "x..."), ("one", ".xx."), ("two", "x..x"))]
    assert repeated(run_of(tmp_path / "a", rows)) == repeated(run_of(tmp_path / "b", rows[::-1]))


@pytest.mark.parametrize("drop", [True, False])
def test_a_run_that_judged_once_has_none(drop: bool, tmp_path: Path) -> None:
    """Runs of before have no such column, those of fixed models no values in it."""
    run = run_of(tmp_path / "run", [row(1, "clean", None), row(1, "one", None, broken=True)], drop)
    assert repeated(run) is None
    assert run.repeats is None
    assert "single passes" not in str(run)


def test_an_unfinished_run_and_an_empty_one(tmp_path: Path) -> None:
    found = repeated(run_of(tmp_path / "run", [row(1, "clean", "...."), row(2, "clean", "xx..")]))
    assert found is not None
    assert found.robust == found.clean
    assert repeated(run_of(tmp_path / "empty", [])) is None


def test_shown_in_the_summary_and_on_the_terminal(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [row(1, "clean", "x..."), row(1, "one", "xxx."), row(2, "clean", "....")])
    text = "clean 87.5 % ± 25.0, robust 62.5 % ± 25.0 over 4 passes, n = 2"
    assert str(run.repeats) == text
    assert f"single passes     {text}" in str(run)
    console = Console(file=io.StringIO(), width=120)
    print_run(run, console)
    assert text in console.file.getvalue()
