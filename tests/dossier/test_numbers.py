"""The numbers of a dossier against those computed by hand, and the decisions on levels."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brinell.dossier.check_dossier import decide, recount, unpack, wilson
from brinell.dossier.groups import read_groups
from brinell.errors import InputError
from brinell.results import Run
from brinell.results import wilson as wilson_of_runs

# Of ten samples one is wrong by itself, one falls to each of three attacks, six stand: see tests/report/conftest.py.
BY_HAND = {
    "0/clean": (45, 50), "0/robust": (30, 50), "0/after/0": (40, 50), "0/after/1": (35, 50), "0/after/2": (30, 50),
    "0/broken/0": (5, 45), "0/broken/1": (5, 40), "0/broken/2": (5, 35),
    # Groups of groups.csv: ids 0 to 29 by day, 30 to 48 by night; even and odd ids; 49 in no group.
    "0/by/1/0/clean": (27, 30), "0/by/1/0/robust": (18, 30), "0/by/1/1/clean": (17, 19), "0/by/1/1/robust": (11, 19),
    "0/by/2/0/robust": (15, 25), "0/by/2/1/robust": (14, 24),
}  # fmt: skip


@pytest.fixture(scope="module")
def payload(data: Path) -> Any:
    return json.loads(data.read_bytes())["payload"]


def test_numbers_are_those_computed_by_hand(payload: Any) -> None:
    shares = payload["numbers"]["shares"]
    assert {key: tuple(shares[key][:2]) for key in BY_HAND} == BY_HAND
    assert {key: tuple(value[:2]) for key, value in shares.items()} == recount(payload["runs"])
    # Wilson's interval for 30 of 50, with z = 1.959964: (0.6 + z²/100 ± z * sqrt(0.24/50 + z²/10000)) / (1 + z²/50).
    assert shares["0/robust"][2:] == pytest.approx([0.461814, 0.723916], abs=2e-6)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 7), (7, 7), (478, 1000), (1, 3)])
@pytest.mark.parametrize("confidence", [0.95, 1 - 0.05 / 7])
def test_the_checker_has_the_interval_of_runs(k: int, n: int, confidence: float) -> None:
    assert wilson(k, n, confidence) == wilson_of_runs(k, n, confidence)


def test_the_page_shows_the_numbers(page: Path) -> None:
    shown = dict(re.findall(r'<data value="([^"]*)">([^<]*)</data>', page.read_text()))
    assert shown["0/robust"] == str(Run.open(page.parent / "a").robust_accuracy)
    assert shown["0/broken/1/count"] == "5 of 40"
    low, high = wilson(11, 19, 1 - 0.05 / 2)
    assert shown["0/by/1/1/robust/of 2"] == f"57.9 % [{100 * low:.1f}, {100 * high:.1f}], n = 19"
    assert shown["level/0"] == "undecided: the verdict on the evaluation is suspicious"
    assert shown["level/1"] == "undecided: no Run of this dossier measures it" or "not met" in shown["level/1"]
    decided = [text for name, text in shown.items() if name.startswith("level/")]
    met = sum(text.startswith("met") for text in decided)
    assert f"not passed.</b>\n {met} of {len(decided)} declared levels met." in page.read_text()


def test_distances_and_hashes_are_those_of_the_run(folder: Path, payload: Any) -> None:
    run, samples = Run.open(folder / "a"), payload["runs"][0]["samples"]
    found = unpack(samples["distance"], "<f8", 50)
    nearest = run.nearest_rows()
    assert np.flatnonzero(np.isfinite(found)).tolist() == nearest["sample_id"].to_pylist()
    assert found[np.isfinite(found)].tolist() == nearest["distance"].to_pylist()
    stored = {str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert set(payload["runs"][0]["files"]) == stored


def level(shares: dict[str, tuple[int, int]], at_least: float, verdict: str = "reliable", **more: Any) -> str:
    runs = [{"finished": True, "verdict": verdict, **more}]
    return decide({"run": 0, "measure": "robust", "at_least": at_least}, shares, runs)[0]


def test_a_level_is_decided_by_the_interval() -> None:
    shares = {"0/robust": (600, 1000)}  # [56.9, 63.0]
    assert [level(shares, p) for p in (50, 56.9, 57, 60, 63, 63.1)] == ["met"] + ["undecided"] * 0 + [
        "met" if wilson(600, 1000)[0] >= 0.569 else "undecided", "undecided", "undecided",
        "not met" if wilson(600, 1000)[1] < 0.63 else "undecided", "not met",
    ]  # fmt: skip
    assert level(shares, 50, "suspicious") == level(shares, 50, "upper bound") == "undecided"
    assert level(shares, 90, "suspicious") == "not met"  # an upper bound below the level is below it
    assert level(shares, 90, "invalid") == level(shares, 50, finished=False) == "undecided"
    assert level({}, 50) == "undecided"
    assert decide({"run": None, "measure": "robust", "at_least": 5}, shares, [])[0] == "undecided"
    proved = {"0/robust": (600, 1000), "0/certified": (500, 1000)}
    assert level(proved, 45, "suspicious") == "met"  # a proof needs no verdict on attacks
    assert level(proved, 50, "suspicious") == "undecided"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header"), ("id\n1", "header"), ("name,light\n1,day", "header"), ("id,light\n1", "line 2"),
        ("id,light\n1,day\n1,night", "two different rows"),
        ("id,a,a\n1,b,c", "header"), ('id,light\n1,"day', "unexpected end"),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_groups(tmp_path / "groups.csv", [0, 1, 2])


def test_ids_of_groups_may_be_texts(tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("age,id\nold,b.png\n,a.png\n")
    (found,) = read_groups(tmp_path / "groups.csv", ["a.png", "b.png", "c.png"])
    assert found.name == "age" and found.values == ("old",) and found.places.tolist() == [-1, 0, -1]
