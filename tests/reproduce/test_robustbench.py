"""The exhibits of the RobustBench paper: stored records, and figures with one point per model."""

from pathlib import Path
from typing import Any

import pytest

import brinell
from brinell.errors import InputError
from brinell.reproduce import Setup, find
from brinell.reproduce.papers.robustbench import FIGURE_1, TABLE_1, _runs


def measure(name: str, setup: Setup | None = None) -> Any:
    function = find(f"robustbench/{name}").measure
    assert function is not None
    return function(setup or Setup())


def test_stored_records_agree_with_the_paper() -> None:
    (table,) = measure("figure-1").tables
    assert [(row[3], row[4]) for row in table.rows] == [(line[2], line[3]) for line in FIGURE_1]
    (counts,) = measure("table-1").tables
    # The boards only grow.
    assert all(ours[1] >= theirs[1] and ours[2] >= theirs[2] for ours, theirs in zip(counts.rows, TABLE_1, strict=True))
    report = measure("figure-2")
    assert sum(k for _, k in report.tables[0].rows) >= 54 and len(report.figures) == 3


def test_figures_over_models_have_the_numbers_of_the_analyses(tmp_path: Path) -> None:
    setup = Setup(models=("demo", "b=demo"), n=40, out=tmp_path, progress=False)
    report = measure("figure-4", setup)
    alone = brinell.analysis.calibration("demo", brinell.data.load("demo", 40)).clean
    x = 100 * _runs(setup)[0].robust_accuracy.value
    assert [(s.name, s.x, s.y) for s in report.figures[0].series] == [
        (name, (x,), (100 * alone.ece.value,)) for name in ("demo", "b")
    ]
    assert "n = 40" in report.tables[0].title
    shifted = measure("figure-3", setup)
    assert [f.y for f in shifted.figures] == [
        f"accuracy on {name} 3, %" for name in ("gaussian_noise", "fog", "jpeg_compression")
    ]


def test_membership_inference_needs_training_samples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="training split"):
        measure("figure-7", Setup(n=4, out=tmp_path))


def test_accuracies_by_class_have_n_and_intervals(tmp_path: Path) -> None:
    setup = Setup(n=20, out=tmp_path, progress=False)
    table = measure("figure-6", setup).tables[-1]
    sizes = [int(c.rpartition(" ")[2]) for c in table.columns[2:]]
    assert sum(sizes) == 20 and [row[1] for row in table.rows] == ["clean", "robust"]
    assert all("[" in str(cell) for row in table.rows for cell in row[2:])


def test_a_missing_corruption_error_is_empty_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brinell.analysis.corruptions.report.CorruptionReport.mce", lambda *_: None)
    (table,) = measure("section-3.1", Setup(n=2)).tables
    assert [row[3] for row in table.rows] == [None] and "[" in str(table.rows[0][4])
