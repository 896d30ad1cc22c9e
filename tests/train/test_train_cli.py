"""`brinell train` from data to a folder that `brinell evaluate` takes."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from brinell import data
from brinell.cli import main

NET = """
from torch import nn
import brinell

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def trained():
    return brinell.train.load("mine", make())
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["brinell", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "100")
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    problem = data.load("demo", 48)
    np.savez("data.npz", x=np.round(255 * problem.x.numpy()).astype(np.uint8), y=problem.y.numpy())
    np.savez("test.npz", x=problem.x.numpy()[:16], y=problem.y.numpy()[:16])
    np.savez("labels.npz", x=problem.x.numpy(), y=problem.y.numpy() + 3)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


BASE = ("train", "-m", "demo", "-d", "data.npz", "--eps", "0.1", "--epochs", "2", "--batch", "16", "-o", "t")
ON = (*BASE, "--validation", "8", "--plan", "fgsm")


def test_train_resume_evaluate(program: Any, here: Path) -> None:
    how = (
        "--method",
        "pgd",
        "--steps",
        "2",
        "--rel-step",
        "0.5",
        "--schedule",
        "one-cycle",
        "--lr",
        "0.01",
        "--average",
        "0.9",
    )
    done = program(*ON, *how)
    assert done.code == 0, done.err
    assert "Training: t" in done.out and "robust, %" in done.out and re.search(r"\d\.\d\s+\[\d", done.out)
    assert "epoch 2/2" in done.err
    config = json.loads((here / "t" / "config.json").read_text())["identity"]
    assert (config["method"]["attack"]["steps"], config["method"]["attack"]["rel_step"]) == (2, 0.5)
    again = program(*ON, *how, "--resume", "--json", "-q")
    assert (again.code, again.err) == (0, "")
    told = json.loads(again.out)
    assert [row["epoch"] for row in told["curve"]] == [1, 2]
    assert told["robust_accuracy"]["n"] == 8
    assert told["robust_accuracy"]["low"] <= told["robust_accuracy"]["value"] <= told["robust_accuracy"]["high"]
    run = program(
        "evaluate", "-m", "t", "-d", "test.npz", "--eps", "0.1", "--plan", "fgsm", "-q", "--out", "run", "--json"
    )
    assert run.code == 0, run.err
    assert json.loads(run.out)["clean_accuracy"]["n"] == 16
    other = program(*ON, *how, "--resume", "--seed", "1")
    assert other.code == 2
    assert "recipe.seed 1 instead of 0" in other.err


def test_a_users_network(program: Any, here: Path) -> None:
    done = program(*BASE[:2], "net.py:make", *BASE[3:-1], "mine", "--validation", "0", "--n", "32", "-q")
    assert done.code == 0, done.err
    assert program("evaluate", "-m", "mine", "-d", "test.npz", "--eps", "0.1", "--plan", "fgsm", "-q").code == 2
    run = program(
        "evaluate", "-m", "net.py:trained", "-d", "test.npz", "--eps", "0.1", "--plan", "fgsm", "-q", "-o", "run"
    )
    assert run.code == 0, run.err


def test_data_of_its_own_for_validation(program: Any, here: Path) -> None:
    done = program(*BASE, "--method", "fgsm-rs", "--validation-data", "test.npz", "--plan", "fgsm", "-q", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["robust_accuracy"]["n"] == 16


CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown network": ((*BASE[:2], "resnet19", *BASE[3:]), "wide-resnet-34-10), FILE.py:FACTORY"),
    "missing data": ((*BASE[:4], "nothing.npz", *BASE[5:]), "does not exist"),
    "labels out of range": ((*BASE[:4], "labels.npz", *BASE[5:]), "labels in 0..9"),
    "unknown method": ((*ON, "--method", "pdg"), "'pgd'"),
    "eps in 0-255 units": ((*BASE[:6], "8", *BASE[7:]), "8/255"),
    "steps of nothing": ((*ON, "--method", "standard", "--steps", "3"), "Omit --steps"),
    "length of adaptive steps": ((*ON, "--method", "mm3", "--rel-step", "0.1"), "Omit --rel-step"),
    "beta of nothing": ((*ON, "--beta", "3"), "Omit --beta"),
    "mean of nothing": ((*ON, "--mean", "half"), "0.49,0.48,0.45"),
    "mean of a user's model": ((*BASE[:2], "net.py:make", *BASE[3:], "--mean", "0.5"), "brinell.wrap"),
    "mean of the demo": ((*ON, "--mean", "0.5", "--std", "0.5"), "no normalisation"),
    "no samples": ((*ON, "--n", "0"), "n of at least 1"),
    "foreign files": ((*ON, "-o", "."), "other files"),
    "unknown plan": ((*BASE, "--validation", "8", "--plan", "fgms"), "'fgsm'"),
    "unknown schedule": ((*ON, "--schedule", "cosine"), "one-cycle"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_exit_code_2(case: str, program: Any, here: Path) -> None:
    arguments, hint = CASES[case]
    before = sorted(os.listdir(here))
    code, out, err = program(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: expected ")
    assert err.count("\n") == 1
    assert hint in err
    assert sorted(set(os.listdir(here)) - {"__pycache__"}) == before


def test_evaluating_a_folder_that_is_no_training(program: Any, here: Path) -> None:
    (here / "odd").mkdir()
    (here / "odd" / "config.json").write_text("{}")
    code, _, err = program("evaluate", "-m", "odd", "-d", "test.npz", "--eps", "0.1", "--plan", "fgsm")
    assert code == 2
    assert "in format 1" in err
