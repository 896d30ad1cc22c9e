"""Every kind of analysis from the command line: tables, JSON, pictures, and findings kept in the Run."""

import json
from pathlib import Path
from typing import Any

import pytest

from brinell.results import Run
from brinell.results.analyses import saved

MODEL = ("--model", "demo", "--data", "demo", "--n", 30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    import brinell

    folder = tmp_path_factory.mktemp("analyze") / "run"
    return brinell.evaluate(
        "demo", brinell.data.load("demo", 30), brinell.Linf(0.1), "fgsm", out=folder, progress=False
    )


def arguments(kind: str, run: Run) -> tuple[Any, ...]:
    return {
        "calibration": (*MODEL, run.path),
        "ood": (*MODEL, run.path, "--other", "itself=demo"),
        "fairness": (run.path,),
        "privacy": ("--model", "demo", "--members", "demo", "--others", "demo", "--n", 30, run.path,
                    run.path),
        "smoothness": (*MODEL, run.path, "--steps", 2, "--restarts", 1, "--layer", "layers.5"),
        "transfer": (*MODEL, run.path, "--model", "demo"),
        "shift": (*MODEL, run.path, "--other", "itself=demo"),
    }[kind]  # fmt: skip


KINDS = ("calibration", "ood", "fairness", "privacy", "smoothness", "transfer", "shift")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(brinell: Any, run: Run, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, file = tmp_path / "a.svg", tmp_path / "a.json"
    result = brinell("analyze", kind, *arguments(kind, run), "--json", file, "--save", "--plot", picture, width=200)
    assert result.code == 0, result.err
    found = json.loads(file.read_text())
    assert found["findings"]["kind"] == kind and found["findings"]["summary"] in result.out
    assert found["numbers"] and picture.stat().st_size > 1000
    (kept,) = [f for f in saved(run.path) if f.kind == kind]
    assert json.loads(json.dumps(kept.to_dict())) == found["findings"]
    unwrapped = " ".join(result.out.split())  # a title is wrapped if its table is narrower
    for table in kept.tables:
        assert table.title in unwrapped


def test_json_on_standard_output(brinell: Any, run: Run) -> None:
    result = brinell("analyze", "fairness", run.path, "--names", ",".join("abcdefghij"), "--json", "-")
    found = json.loads(result.out)
    assert sum(c["robust"]["k"] for c in found["numbers"]["classes"]) == run.robust_accuracy.k
    assert {c["name"] for c in found["numbers"]["classes"]} <= set("abcdefghij")


def test_itself_is_no_stranger(brinell: Any, run: Run) -> None:
    """The model's own data as foreign, and as data from elsewhere."""
    result = brinell("analyze", "ood", *arguments("ood", run), "--json", "-")
    assert json.loads(result.out)["numbers"]["sets"][0]["auroc"]["value"] == 0.5
    (there,) = json.loads(brinell("analyze", "shift", *arguments("shift", run), "--json", "-").out)["numbers"]["sets"]
    assert there["paired"] and there["gap"]["value"] == 0


def test_the_same_model_twice_gets_two_names(brinell: Any, run: Run) -> None:
    result = brinell("analyze", "transfer", *arguments("transfer", run), "--json", "-")
    found = json.loads(result.out)["numbers"]
    assert found["targets"] == ["demo", "demo (2)"]
    assert [c["rate"]["value"] for c in found["cells"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("ood", *MODEL, "--save"), "--save with a Run"),
        (("calibration", *MODEL, "--plot", "a.jpeg"), ".svg"),
        (("shift", *MODEL, "--other", "demo", "--other", "demo"), "demo twice"),
        (("calibration", *MODEL, "--run", "nowhere"), "no such file"),
    ],
)
def test_mistakes_are_one_sentence(brinell: Any, given: tuple[Any, ...], told: str) -> None:
    result = brinell("analyze", *given)
    assert result.code == 2 and told in result.err and "Traceback" not in result.err


def test_runs_and_models_must_match(brinell: Any, run: Run) -> None:
    one = ("--members", "demo", "--others", "demo", run.path)
    assert "two Runs" in brinell("analyze", "privacy", "--model", "demo", *one).err
    two = ("--data", "demo", run.path, run.path)
    assert "a model for every Run" in brinell("analyze", "transfer", "--model", "demo", *two).err


def test_privacy_with_an_attack_of_its_own(brinell: Any) -> None:
    result = brinell(
        "analyze", "privacy", "--model", "demo", "--members", "demo", "--others", "demo", "--n", 20, "--eps", "0.1",
        "--steps", 3, "--json", "-",
    )  # fmt: skip
    found = json.loads(result.out)["numbers"]
    assert found["adversarial"]["members"]["k"] <= found["clean"]["members"]["k"]
    assert found["adversarial"]["label"]["value"] == 0.5
