"""brinell submit and brinell verify: one file out, and whether it holds."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brinell import Linf, Run, data, evaluate
from brinell.leaderboard import records


def root_of(bundle: str | Path) -> str:
    with zipfile.ZipFile(bundle) as archive:
        return str(json.loads(archive.read("bundle.json"))["root"])


@pytest.fixture
def run(here: Path) -> Path:
    evaluate("demo", data.load("demo", 16), Linf(0.1), "fgsm", out=here / "run", progress=False)
    records.of_run(Run.open("run"), "demo", "Linf", "Mine").write(here / "run" / records.RECORD)
    return here / "run"


def test_submit_and_verify(brinell: Any, run: Path) -> None:
    code, out, _ = brinell("submit", "run", "--out", "mine.zip")
    assert (code, out.split()[-1]) == (0, root_of("mine.zip"))
    told = json.loads(brinell("submit", "run", "--out", "again.zip", "--json").out)
    assert told == {"bundle": "again.zip", "bytes": Path("mine.zip").stat().st_size, "root": root_of("mine.zip")}
    assert Path("mine.zip").read_bytes() == Path("again.zip").read_bytes()
    code, out, err = brinell("verify", "mine.zip", "--model", "demo", "--rerun", "3", "--record", "board")
    assert code == 0, err
    assert "3 of 11 survivors run again" in out and "3 with identical rows" in out
    assert f"best known robust accuracy under Linf(eps=0.1): {Run.open('run').robust_accuracy}" in out
    place = Path("board/demo/Linf/Mine.json")
    assert f"Record: {place}" in out and records.read(place).status == "verified"


def test_several(brinell: Any, run: Path) -> None:
    brinell("submit", "run", "--out", "mine.zip")
    strong = evaluate("demo", data.load("demo", 16), Linf(0.1), "pgd20", progress=False)
    found = strong.adversarials()
    np.savez("theirs.npz", ids=found.ids, x=found.x)
    code, out, _ = brinell("verify", "mine.zip", "theirs.npz", "-m", "demo", "-d", "demo", "--rerun", "0", "--json")
    told = json.loads(out)
    assert code == 0 and told["ok"]
    assert told["bound"]["k"] == strong.robust_accuracy.k < Run.open("run").robust_accuracy.k
    assert [s["name"] for s in told["submissions"]] == ["mine.zip", "theirs.npz"]
    theirs = ("verify", "theirs.npz", "-m", "demo", "-d", "demo", "--n", "16")
    code, out, _ = brinell(*theirs, "--eps", "0.1", "--norm", "Linf")
    assert code == 0 and f"Linf(eps=0.1): {strong.robust_accuracy}" in out
    code, out, _ = brinell(*theirs, "--eps", "0.05")
    assert code == 1 and "further than eps" in out


def test_a_run_alone_names_its_data(brinell: Any, run: Path) -> None:
    n = len(Run.open(run).adversarials().ids)
    assert brinell("verify", "run", "--model", "demo", "--rerun", 0).out == f"{n} of {n} adversarials verified\n"
    found = "1 of 11 survivors run again (seed 4), 0 broke; 11 or more wrong ones would have been noticed (95 %)"
    assert found in brinell("verify", "run", "--model", "demo", "--rerun", "1", "--seed", "4").out


def test_the_size_of_the_check_is_chosen_and_stated(brinell: Any, run: Path) -> None:
    told = json.loads(brinell("verify", "run", "-m", "demo", "--hidden", "2", "--confidence", "90", "--json").out)
    assert told["ok"] and told["again"]["population"] == 11 and told["again"]["found"] == 2
    assert "a single wrong one would have been noticed" in brinell("verify", "run", "-m", "demo", "--hidden", "1").out
    code, out, _ = brinell("verify", "run")
    assert code == 3 and out.startswith("No adversarial verified") and "nothing was checked on a model" in out
    assert "--rerun" in brinell("verify", "run", "-m", "demo", "--hidden", "1", "--rerun", "1").err


def test_tampered_bundles_are_refused(brinell: Any, run: Path) -> None:
    brinell("submit", "run", "--out", "mine.zip")
    with zipfile.ZipFile("mine.zip", "a") as archive:
        archive.writestr("../evil.txt", "evil")
    code, _, err = brinell("verify", "mine.zip", "--model", "demo")
    assert code == 2 and "'../evil.txt'" in err and "refused" in err
    assert not Path("../evil.txt").exists()


def test_what_cannot_be_submitted(brinell: Any, here: Path) -> None:
    arguments = ("evaluate", "-m", "demo", "-d", "demo", "--n", "4", "--eps", "0.1", "--plan", "fgsm", "-q")
    brinell(*arguments, "--no-images", "--out", "run")
    code, _, err = brinell("submit", "run", "--out", "mine.zip")
    assert code == 2 and "--no-images" in err and not Path("mine.zip").exists()
    code, _, err = brinell("verify", "notes.txt", "--model", "demo")
    assert code == 2 and "a bundle of brinell submit" in err
