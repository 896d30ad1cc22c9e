"""Data sets and loaders give what tensors give, chunk by chunk or at once, whole or in parts."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from brinell import InputError, Linf, Problem, Run, attack, attacks, evaluate, verify

PLAN = attacks.PGD(steps=4)
# By its name in the table of modules: brinell.evaluate is the function.
SESSION = sys.modules["brinell.evaluation.context"]


class Pairs(Dataset):  # type: ignore[type-arg]
    """Reads one sample at a time and remembers how many it was asked for."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.read = problem, 0

    def __len__(self) -> int:
        return len(self.problem)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.read += 1
        return self.problem.x[i], int(self.problem.y[i])


@pytest.fixture(scope="module")
def reference(problem: Problem) -> Run:
    return evaluate("demo", problem, Linf(0.1), PLAN, progress=False)


@pytest.mark.parametrize("kind", ["dataset", "tensor dataset", "loader", "odd loader", "problem of a dataset"])
def test_streams_give_the_same_rows(kind: str, problem: Problem, reference: Run, outcome: Any) -> None:
    tensors = TensorDataset(problem.x, problem.y)
    source = {
        "dataset": Pairs(problem),
        "tensor dataset": tensors,
        "loader": DataLoader(tensors, batch_size=16),
        "odd loader": DataLoader(Pairs(problem), batch_size=7),
        "problem of a dataset": Problem(tensors),
    }[kind]
    run = evaluate("demo", source, Linf(0.1), PLAN, progress=False)
    assert outcome(run.rows()).equals(outcome(reference.rows()))
    assert np.array_equal(run.adversarials().x, reference.adversarials().x)
    assert verify(run, "demo", problem).ok


@pytest.mark.parametrize("size", [1, 7, 39])
@pytest.mark.parametrize("streamed", [False, True])
def test_chunks_give_the_same_rows(
    size: int, streamed: bool, problem: Problem, reference: Run, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = problem[:10] if size == 1 else problem
    monkeypatch.setattr(SESSION, "CHUNK", size)
    data = DataLoader(TensorDataset(some.x, some.y), batch_size=8) if streamed else some
    run = evaluate("demo", data, Linf(0.1), PLAN, progress=False)
    expected = reference.rows()
    if size == 1:
        expected = expected.filter(np.asarray(expected["sample_id"]) < 10)
    assert outcome(run.rows()).equals(outcome(expected))


def test_attack_in_chunks(problem: Problem, outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = (problem.x + 0.02).clamp(0, 1)
    whole = attack("demo", problem, Linf(0.1), attacks.PGD(steps=3), start=start)
    monkeypatch.setattr(SESSION, "CHUNK", 9)
    parts = attack("demo", problem, Linf(0.1), attacks.PGD(steps=3), start=start)
    assert outcome(whole).equals(outcome(parts))


def test_slices_of_streams(problem: Problem, reference: Run, outcome: Any) -> None:
    part = Problem(TensorDataset(problem.x, problem.y))[10:20]
    run = evaluate("demo", part, Linf(0.1), PLAN, progress=False)
    ids = np.asarray(reference.rows()["sample_id"])
    assert outcome(run.rows()).equals(outcome(reference.rows().filter((ids >= 10) & (ids < 20))))


def test_resume_of_a_stream(problem: Problem, reference: Run, outcome: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(SESSION, "CHUNK", 16)

    class Broken(Pairs):
        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            if i == 35:
                raise OSError("the disk is gone")
            return super().__getitem__(i)

    with pytest.raises(InputError, match="OSError: the disk is gone, at sample 35"):
        evaluate("demo", DataLoader(Broken(problem), batch_size=4), Linf(0.1), PLAN, out=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists() or not Run.open(tmp_path / "r").finished
    whole = DataLoader(Pairs(problem), batch_size=4)
    run = evaluate("demo", whole, Linf(0.1), PLAN, out=tmp_path / "r", resume=True, progress=False)
    assert outcome(run.rows()).equals(outcome(reference.rows()))


def test_shuffled_loader_is_refused(problem: Problem) -> None:
    loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=8, shuffle=True)
    with pytest.raises(InputError, match="shuffle=False"):
        evaluate("demo", loader, Linf(0.1), "fgsm", progress=False)


def test_stream_of_bare_inputs_is_refused(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\(x, y\)"):
        evaluate(
            "demo", DataLoader(list(problem.x), batch_size=8), Linf(0.1), "fgsm", out=tmp_path / "r", progress=False
        )  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


def test_bad_sample_in_a_stream(problem: Problem, tmp_path: Path) -> None:
    x = problem.x.clone()
    x[2] = 7
    with pytest.raises(InputError, match="wrap"):
        evaluate("demo", TensorDataset(x, problem.y), Linf(0.1), "fgsm", out=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


def test_parts_merge_to_the_whole(problem: Problem, reference: Run, outcome: Any, tmp_path: Path) -> None:
    parts = [problem[:13], problem[13:14], problem[14:]]
    for i, part in enumerate(parts):
        evaluate("demo", part, Linf(0.1), PLAN, out=tmp_path / str(i), progress=False)
    merged = Run.merge([tmp_path / str(i) for i in (2, 0, 1)], tmp_path / "all")
    assert outcome(merged.rows()).equals(outcome(reference.rows()))
    assert merged.robust_accuracy == reference.robust_accuracy
    assert np.array_equal(merged.adversarials().x, reference.adversarials().x)
    assert verify(merged, "demo", problem).ok
    assert merged.finished


def test_tensors_on_disk_memory_maps(problem: Problem, reference: Run, outcome: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", problem.x.numpy())
    x = torch.from_numpy(np.load(tmp_path / "x.npy"))
    run = evaluate("demo", (x, problem.y), Linf(0.1), PLAN, progress=False)
    assert outcome(run.rows()).equals(outcome(reference.rows()))
