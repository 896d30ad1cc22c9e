"""Loggers: trackers receive the numbers of the Run, through the small part of their interfaces that is used."""

import sys
from pathlib import Path
from typing import Any

import pytest

import brinell
from brinell.integrations import MLflow, TensorBoard, WandB, numbers, texts
from brinell.results import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "mine"
    data = brinell.data.load("demo", 24)
    return brinell.evaluate("demo", data, brinell.Linf("0.1"), ["fgsm", "pgd-ce"], out=out, progress=False)


class Tracker:
    """Records every call: name, arguments, keywords."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [given for called, given, _ in self.calls if called == name]


def test_numbers_are_those_of_the_run(run: Run) -> None:
    found = numbers(run)
    share = run.robust_accuracy
    assert found["brinell/robust_accuracy"] == share.value == found["brinell/accuracy_after/pgd-ce"]
    assert (found["brinell/robust_accuracy_low"], found["brinell/robust_accuracy_high"]) == (share.low, share.high)
    assert found["brinell/n"] == 24 and found["brinell/clean_accuracy"] == run.clean_accuracy.value
    assert all(type(v) is float for v in found.values())
    assert texts(run, "")["verdict"] == run.verdict.level and texts(run, "")["threat"] == "Linf(eps=0.1)"


def test_tensorboard(run: Run) -> None:
    writer = Tracker()
    TensorBoard(writer)(run, 7)
    assert writer.of("add_scalar") == [(name, value, 7) for name, value in numbers(run).items()]
    assert ("brinell/verdict", run.verdict.level, 7) in writer.of("add_text") and writer.of("flush") == [()]


def test_mlflow(run: Run) -> None:
    client = Tracker()
    MLflow(files=True, client=client)(run, 3)
    assert ("log_metrics", (numbers(run),), {"step": 3}) in client.calls
    assert client.of("set_tags") == [(texts(run),)]
    assert ("log_artifacts", (str(run.path),), {"artifact_path": "mine"}) in client.calls
    few = Tracker()
    MLflow(client=few)(run)
    assert few.of("log_artifacts") == []


def test_weights_and_biases(run: Run) -> None:
    target = Tracker()
    target.summary = {}
    WandB(target, prefix="")(run, 2)
    assert target.calls == [("log", (numbers(run, ""),), {"step": 2})]
    assert target.summary == texts(run, "")


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboard", lambda folder: TensorBoard(folder)),
        ("mlflow", lambda folder: MLflow()),
        ("wandb", lambda folder: WandB()(Run.open("tests/results/golden_run_v1"))),
    ],
)
def test_a_missing_tracker_is_named(module: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(brinell.MissingExtra, match=module):
        make(tmp_path)
