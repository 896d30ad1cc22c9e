"""The papers' tables and figures by name: every entry is complete, and one runs, is stored and reads back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from brinell.errors import InputError, RunError
from brinell.reproduce import Reproduction, Setup, exhibits, find, reproduce
from brinell.reproduce.catalogue import PAPERS
from brinell.reproduce.exhibit import CALCULATED, MEASURED, RECORDS
from brinell.reproduce.run import command, markdown
from brinell.reproduce.setup import OPTIONS
from brinell.results.analyses import Table


def test_every_exhibit_can_be_run_or_says_what_is_missing() -> None:
    names = [e.name for e in exhibits()]
    assert len(set(names)) == len(names)
    for e in exhibits():
        assert e.paper in PAPERS and e.title and e.place and e.needs and e.cost, e.name
        assert (e.measure is None) == bool(e.missing), e.name
        assert e.published, f"{e.name} does not say what the paper says"
        assert e.source in (MEASURED, RECORDS, CALCULATED) or find(e.source).source == MEASURED, e.name
        assert {*e.uses} <= {"model", *OPTIONS}, e.name


def test_an_exhibit_is_stored_and_reads_back(tmp_path: Path) -> None:
    made = reproduce("mm/table-2", Setup(n=12, out=tmp_path, progress=False))
    sizes = [row[2] for row in made.report.tables[0].rows]
    assert len(sizes) == 7 and all(isinstance(s, int) and 0 <= s <= 12 for s in sizes)
    again = Reproduction.open(tmp_path)
    assert again.report == made.report and again.command == "brinell reproduce mm/table-2 --n 12"
    text = (tmp_path / "result.md").read_text()
    assert "Measured:" in text and "The paper:" in text and str(tmp_path) not in text
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    # A second call continues the stored Run, gives the same table, and says so beside the cost of the Run.
    second = reproduce("mm/table-2", Setup(n=12, out=tmp_path, progress=False))
    assert second.report == made.report and second.run_seconds == pytest.approx(made.run_seconds)
    assert (made.resumed, second.resumed) == (False, True)
    assert made.run_seconds and second.time == f"{made.run_seconds:.0f} s, from stored Runs"
    assert Reproduction.open(tmp_path).resumed


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


def test_options_that_are_not_used_are_refused(tmp_path: Path) -> None:
    for name, setup, flag in [
        ("robustbench/table-1", Setup(models=("nosuch",), out=tmp_path), "--model"),
        ("robustbench/section-3.1", Setup(eps="8/255", out=tmp_path), "--eps"),
        ("mm/table-2", Setup(steps=3, other=("demo",), out=tmp_path), "--other, --steps"),
    ]:
        with pytest.raises(InputError, match=f"got {flag}|{flag}"):
            reproduce(name, setup)
    with pytest.raises(InputError, match="2 models"):
        reproduce("mm/table-2", Setup(models=("demo", "b=demo"), out=tmp_path))
    assert not any(tmp_path.iterdir())


def test_records_are_not_called_measured(tmp_path: Path) -> None:
    made = reproduce("robustbench/table-1", Setup(out=tmp_path))
    text = made.to_markdown()
    assert "From stored records: Models" in text and "Measured:" not in text
    assert find("mm/table-9").origin == "same run as mm/table-8"
    assert replace(made, exhibit=find("mm/table-9")).heading == "Measured as in mm/table-8"


def test_folders_of_this_machine_are_not_stored() -> None:
    setup = Setup(("a=/home/me/nets.py:make",), "/data/x.npz", other=("b=/data/y.npz", "/data/z.npz,split=train"))
    stored = setup.to_json()
    assert (stored["models"], stored["data"]) == (["a=nets.py:make"], "x.npz")
    assert stored["other"] == ["b=y.npz", "z.npz,split=train"]
    line = command("robustbench/figure-3", setup)
    assert "/data" not in line and "/home" not in line and "--other b=y.npz" in line


def test_further_data_may_have_a_name_or_not() -> None:
    found = Setup(n=3, other=("demo", "b=demo", "demo")).others
    assert list(found) == ["demo", "b", "demo (2)"] and all(len(p) == 3 for p in found.values())
