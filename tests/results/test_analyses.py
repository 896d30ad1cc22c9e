from pathlib import Path

import pytest

from brinell.errors import RunError
from brinell.results.analyses import AnalysisReport, Figure, Series, Table, saved

FOUND = AnalysisReport(
    "calibration",
    "Calibration",
    "Too sure.",
    (Table("Numbers", ("name", "value"), (("ECE", 0.25), ("temperature", None))),),
    (
        Figure(
            "Reliability", "points", "confidence", "accuracy", (Series("model", (0.5,), (0.4,), (0.3,), (0.5,)),), True
        ),
    ),
)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    FOUND.save(tmp_path)
    assert saved(tmp_path) == [FOUND]


def test_the_newest_of_a_kind_is_kept(tmp_path: Path) -> None:
    FOUND.save(tmp_path)
    newer = AnalysisReport("calibration", "Calibration", "Quite right.")
    newer.save(tmp_path)
    assert saved(tmp_path) == [newer]


def test_a_run_without_analyses_has_none(tmp_path: Path) -> None:
    assert saved(tmp_path) == []


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    FOUND.save(tmp_path).write_text("{}")
    with pytest.raises(RunError, match=r"calibration\.json"):
        saved(tmp_path)


def test_lengths_are_checked() -> None:
    with pytest.raises(ValueError, match="every row must have 2 cells"):
        Table("T", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="must have the same length"):
        Series("S", (1.0,), (1.0, 2.0))
