"""Commands over many models: one table, one picture, exit code 2 if a model failed; and several seeds."""

import json
from pathlib import Path
from typing import Any

import pytest

import brinell as package
from brinell.results.analyses import saved

MANY = ("--model", "demo", "--model", "net.py:fails", "--model", "net.py:wrapped")
DATA = ("--data", "demo", "--n", 30)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for eps in (0.05, 0.1):
        package.evaluate(
            "demo", package.data.load("demo", 30), package.Linf(eps), "fgsm", out=folder / f"{eps}", progress=False
        )
    return folder


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("calibration", DATA),
        ("ood", DATA),
        ("privacy", ("--members", "demo", "--others", "demo", "--n", 30)),
        ("smoothness", (*DATA, "--steps", 1, "--restarts", 1, "--layer", "layers.5")),
        ("shift", (*DATA, "--other", "itself=demo", "--eps", 0.1, "--plan", "fgsm", "--out", "shifted")),
        ("transfer", DATA),
    ],
)
def test_analyses(brinell: Any, here: Path, runs: Path, kind: str, more: tuple[Any, ...]) -> None:
    pytest.importorskip("matplotlib")
    run = runs / "0.05" if kind == "transfer" else runs
    result = brinell("analyze", kind, *MANY, *more, run, "--plot", "a.svg", "--json", "a.json", width=250)
    assert result.code == 2 and "net.py:fails" in result.err and "no [weights] here" in result.err
    found = json.loads((here / "a.json").read_text())
    assert (here / "a.svg").stat().st_size > 1000
    if kind != "transfer":
        assert set(found["numbers"]) == {"demo", "mine"}
        assert [row[0] for row in found["findings"]["tables"][0]["rows"]] == ["demo", "mine"]
    if kind == "shift":
        assert len(list((here / "shifted").rglob("manifest.json"))) == 4


def test_one_model_prints_as_before(brinell: Any, here: Path) -> None:
    (here / "models.txt").write_text("demo\n")
    one = brinell("analyze", "ood", "--model", "demo", *DATA, "--json", "-")
    listed = brinell("analyze", "ood", "--model", "models.txt", *DATA, "--json", "-")
    assert one.code == 0 and one.out == listed.out and json.loads(one.out)["findings"]["kind"] == "ood"


def test_fairness_of_a_folder_and_findings_kept_in_each_run(brinell: Any, runs: Path) -> None:
    result = brinell("analyze", "fairness", runs, "--save", "--json", "-")
    assert result.code == 0 and set(json.loads(result.out)["numbers"]) == {"demo", "demo (2)"}
    assert [saved(runs / name)[0].kind for name in ("0.05", "0.1")] == ["fairness", "fairness"]


def test_transfer_finds_the_run_of_each_model(brinell: Any, here: Path, runs: Path) -> None:
    result = brinell("analyze", "transfer", "--model", "net.py:squashed", "--model", "demo", *DATA, runs,
                     "--json", "-")  # fmt: skip
    assert json.loads(result.out)["numbers"]["sources"] == ["demo"], result.err


def test_benchmark_curve_and_test_attack(brinell: Any, here: Path) -> None:
    pytest.importorskip("matplotlib")
    board = ("benchmark", *MANY, "--dataset", "demo", "--n", 4, "--eps", 0.5, "--out", "boards", "-q")
    result = brinell(*board, "--plot", "board.svg", width=200)
    assert result.code == 2 and "no [weights] here" in result.err
    assert "demo" in result.out and "mine" in result.out and (here / "board.svg").exists()
    assert len(list((here / "boards").glob("*/record.json"))) == 2
    again = brinell(*board, "--resume", "--json")
    assert {float(m["autoattack_acc"]) for m in json.loads(again.out)["numbers"].values()} == {0.0}
    result = brinell("curve", *MANY, *DATA, "--norm", "Linf", "--plan", "minimal-quick", "--json", "-q")
    assert result.code == 2 and len(json.loads(result.out)) == 2
    result = brinell("test-attack", *MANY, "--data", "demo", "--n", 4, "--eps", 0.1, "--plan", "fgsm", "--inner", 19,
                     "--json", "-q")  # fmt: skip
    assert result.code == 2 and set(json.loads(result.out)) == {"demo", "mine"}
    assert brinell("benchmark", *MANY, "--name", "x").code == 2


def test_seeds(brinell: Any, here: Path) -> None:
    evaluate = ("evaluate", "--model", "demo", *DATA, "--eps", 0.1, "--plan", "pgd20", "--seeds", 2, "-q")
    result = brinell(*evaluate, "--out", "runs", width=200)
    assert result.code == 0 and "over 2 seeds" in result.out and (here / "runs" / "seed-1").is_dir()
    found = json.loads(brinell(*evaluate, "--out", "runs", "--resume", "--json").out)
    assert len(found["runs"]) == 2 and found["mean"] == pytest.approx(
        sum(r["robust_accuracy"]["value"] for r in found["runs"]) / 2
    )
    result = brinell("benchmark", "--model", "demo", "--dataset", "demo", "--n", 4, "--eps", 0.5, "--seeds", 2, "-q")
    assert result.code == 0 and "over 2 seeds" in result.out
    many = brinell("benchmark", "--model", "demo", "--model", "b=demo", "--dataset", "demo", "--n", 4, "--eps", 0.5,
                   "--seeds", 2, "--json", "--out", "both", "-q")  # fmt: skip
    first, second = sorted((here / "both").iterdir())  # equal weights under two names
    assert second.name == f"{first.name}-2" and (second / "seed-1").is_dir()
    numbers = json.loads(many.out)["numbers"]
    assert [m["value"] for m in numbers["b"]] == [0.0, 0.0] and set(numbers) == {"demo", "b"}
