"""The papers' tables and figures by name: every entry is complete, and one runs, is stored and reads back."""

import json
from pathlib import Path

import pytest

from brinell.errors import InputError, RunError
from brinell.reproduce import Reproduction, Setup, exhibits, find, reproduce
from brinell.reproduce.catalogue import PAPERS
from brinell.reproduce.run import markdown
from brinell.results.analyses import Table


def test_every_exhibit_can_be_run_or_says_what_is_missing() -> None:
    names = [e.name for e in exhibits()]
    assert len(set(names)) == len(names)
    for e in exhibits():
        assert e.paper in PAPERS and e.title and e.place and e.needs and e.cost, e.name
        assert (e.measure is None) == bool(e.missing), e.name
        assert e.published, f"{e.name} does not say what the paper says"


def test_an_exhibit_is_stored_and_reads_back(tmp_path: Path) -> None:
    made = reproduce("mm/table-2", Setup(n=12, out=tmp_path, progress=False))
    sizes = [row[2] for row in made.report.tables[0].rows]
    assert len(sizes) == 7 and all(isinstance(s, int) and 0 <= s <= 12 for s in sizes)
    again = Reproduction.open(tmp_path)
    assert again.report == made.report and again.command == "brinell reproduce mm/table-2 --n 12"
    text = (tmp_path / "result.md").read_text()
    assert "Measured:" in text and "The paper:" in text and str(tmp_path) not in text
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    # A second call continues the stored Run and gives the same table.
    assert reproduce("mm/table-2", Setup(n=12, out=tmp_path, progress=False)).report == made.report


def test_wrong_names_and_damaged_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mm/table-2"):
        find("mm/table2")
    with pytest.raises(RunError, match=r"brinell reproduce"):
        Reproduction.open(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"exhibit": "mm/table-2"}))
    with pytest.raises(RunError, match=r"brinell reproduce"):
        Reproduction.open(tmp_path)


def test_models_are_named_and_numbered() -> None:
    assert list(Setup(models=("demo", "a=demo", "demo")).classifiers)[1] == "a"
    assert len(Setup(models=("demo", "demo")).classifiers) == 2


def test_cells_with_bars_stay_in_their_column() -> None:
    assert markdown(Table("t", ("a", "b"), (("x|y", None),))).splitlines()[-1] == "| x\\|y |  |"
