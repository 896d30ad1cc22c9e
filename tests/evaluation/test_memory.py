"""What an evaluation holds does not grow with the number of samples, and images need not be kept."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from brinell import InputError, Linf, Problem, Run, RunError, attacks, compare, evaluate, verify
from brinell.evaluation import backend
from brinell.ops import rng
from brinell.results.format import files

SESSION = sys.modules["brinell.evaluation.context"]
INCIDENTAL = ("seconds", "adv_shard", "adv_row")


class Made(Dataset):  # type: ignore[type-arg]
    """Samples made when asked for."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, int]]:
        x = rng.uniform(rng.keys(0, torch.tensor(index)), (16,))
        return [(row, int(row[0] > row[1])) for row in x]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.__getitems__([i])[0]


@pytest.fixture
def sign(linear: Callable[..., nn.Module]) -> nn.Module:
    """Compares the first two coordinates."""
    net = linear(16, 2)
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.zero_()
        net[1].weight[1, 0] = net[1].weight[0, 1] = 1
    return net


@pytest.mark.usefixtures("unchecked")
def test_python_memory_does_not_grow_with_the_samples(sign: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak of what Python and numpy allocate, and tensors alive in the middle of the run, for n and 8 n samples."""
    monkeypatch.setattr(SESSION, "CHUNK", 192)
    alive: list[int] = []
    calls: list[int] = []
    chunks = backend.run_plan

    def watched(*args: Any, **more: Any) -> Any:
        calls.append(len(calls))
        if len(calls) in (3, 16):
            gc.collect()
            alive.append(sum(v.nbytes for v in gc.get_objects() if type(v) is Tensor))
        return chunks(*args, **more)

    monkeypatch.setattr(backend, "run_plan", watched)

    def peak(n: int) -> int:
        tracemalloc.start()
        try:
            evaluate(sign, Made(n), Linf(0.05), "fgsm", progress=False, images=False)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(192)  # imports and caches
    small = peak(384)
    calls.clear()
    alive.clear()
    large = peak(8 * 384)
    assert large < 1.25 * small
    assert len(calls) == 16
    assert alive[1] <= 1.05 * alive[0]


def bytes_of_tensors() -> int:
    """The bytes of all tensors in memory, those of earlier tests too."""
    gc.collect()
    tensors = [v for v in gc.get_objects() if type(v) is Tensor]
    return sum({v.data_ptr(): v.untyped_storage().nbytes() for v in tensors}.values())


class Watched(Made):
    """Samples that note the bytes of all tensors in memory when one in the middle of a later chunk is read."""

    at = 440
    alive = 0

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, int]]:
        if self.at in index:
            self.alive = bytes_of_tensors()
        x = rng.uniform(rng.keys(0, torch.tensor(index)), (4096,))
        return [(row, int(row[0] > row[1])) for row in x]


@pytest.mark.usefixtures("unchecked")
def test_a_stream_is_held_once(linear: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a chunk is read, nothing of the first chunk, of the one before or of a list of batches is in memory."""
    size = 128
    monkeypatch.setattr(SESSION, "CHUNK", size)
    monkeypatch.setattr(sys.modules["brinell.core.dataset"], "READ", 16)
    data, before = Watched(4 * size), bytes_of_tensors()
    evaluate(linear(4096, 2), data, Linf(0.05), "fgsm", progress=False, images=False)
    assert 0 < data.alive - before < 2.4 * size * 4096 * 4  # held twice, it would be 3


def test_the_checks_and_the_attack_read_the_same_inputs(sign: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of what the checks read recognises other inputs, in every piece of it."""
    monkeypatch.setattr(SESSION, "CPU_BYTES", 64 * 16 * 4)

    class Changes(Made):
        calls = 0

        def __getitems__(self, index: list[int]) -> list[tuple[Tensor, int]]:
            rows = super().__getitems__(index)
            self.calls += 300 in index
            return [(x * 0.5 if i == 300 and self.calls > 1 else x, y) for i, (x, y) in zip(index, rows, strict=True)]

    with pytest.raises(InputError, match="the same every time"):
        evaluate(sign, Changes(400), Linf(0.05), "fgsm", progress=False)
    steady = evaluate(sign, Made(400), Linf(0.05), "fgsm", progress=False)
    assert steady.clean_accuracy.n == 400


def test_small_chunks_give_the_same_rows(sign: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(sign, Made(300), Linf(0.05), "pgd20", progress=False)
    monkeypatch.setattr(SESSION, "CPU_BYTES", 70 * 16 * 4)
    pieces = evaluate(sign, Made(300), Linf(0.05), "pgd20", progress=False)
    assert pieces.rows().drop_columns(INCIDENTAL).equals(whole.rows().drop_columns(INCIDENTAL))
    assert len(pieces.shards.names) > len(whole.shards.names)


def test_samples_of_two_shapes_are_refused() -> None:
    class Uneven(Made):
        def __getitems__(self, index: list[int]) -> list[tuple[Tensor, int]]:
            return [(torch.zeros(16 if index[0] < 256 else 1), 0) for _ in index]

    with pytest.raises(InputError, match="samples of one shape"):
        list(Problem(Uneven(300)).chunks(300))


@pytest.mark.parametrize("size", [1, 100, 256, 300, 1000])
def test_chunks_of_a_stream_are_its_samples_in_order(size: int) -> None:
    chunks = list(Problem(Made(600)).chunks(size))
    assert [c.offset for c in chunks] == list(range(0, 600, size))
    assert [len(c) for c in chunks] == [size] * (600 // size) + ([600 % size] if 600 % size else [])
    assert torch.equal(torch.cat([c.x for c in chunks])[577], Made(600)[577][0])
    assert torch.cat([c.ids for c in chunks]).tolist() == list(range(600))


def test_slices_of_streams_hold_no_list_of_places() -> None:
    part = Problem(Made(1_000_000))[10:900_000:2][5:]
    tracemalloc.start()
    again = part[1000:]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 10_000
    first = next(again.chunks(3))
    assert first.ids.tolist() == [10 + 2 * (5 + 1000 + k) for k in range(3)]
    assert torch.equal(first.x[0], Made(1_000_000)[2020][0])


@pytest.fixture
def pair(problem: Problem, tmp_path: Path) -> tuple[Run, Run]:
    """The same evaluation with and without images."""
    plan = attacks.PGD(steps=3)
    kept = evaluate("demo", problem, Linf(0.1), plan, out=tmp_path / "kept", progress=False)
    bare = evaluate("demo", problem, Linf(0.1), plan, out=tmp_path / "bare", progress=False, images=False)
    return kept, bare


def test_without_images_everything_else_is_the_same(pair: tuple[Run, Run], problem: Problem, tmp_path: Path) -> None:
    kept, bare = pair
    assert bare.rows().drop_columns(INCIDENTAL).equals(kept.rows().drop_columns(INCIDENTAL))
    assert bare.robust_accuracy.k < bare.clean_accuracy.k
    assert not list((bare.path / "adversarials").iterdir())
    assert bare.rows()["adv_shard"].null_count == bare.rows().num_rows
    assert (kept.images, bare.images) == (True, False)
    assert bare.verdict == kept.verdict
    assert "none is stored" in bare.sentence() and "stored" not in kept.sentence()
    assert any("not stored" in note for note in bare.manifest["notes"])
    assert compare(kept, bare).agreement.k == 40
    merged = Run.merge([bare.path], tmp_path / "merged")
    assert not merged.images and merged.robust_accuracy == kept.robust_accuracy


def test_verification_holds_the_adversarials_of_one_chunk(
    pair: tuple[Run, Run], problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["brinell.verification.adversarials"], "CHUNK", 7)
    gathered: list[int] = []
    gather = sys.modules["brinell.results.run"].gather

    def spy(shards: Any, table: Any) -> Any:
        gathered.append(table.num_rows)
        return gather(shards, table)

    for module in ("brinell.results.run", "brinell.verification.adversarials"):
        monkeypatch.setattr(sys.modules[module], "gather", spy)
    run = pair[0]
    assert verify(run, "demo", problem).ok
    assert max(gathered) < sum(gathered) == len(run.nearest_rows()) == 4


def test_verifying_without_images_is_explained(pair: tuple[Run, Run], problem: Problem) -> None:
    with pytest.raises(RunError, match="keeps its adversarials") as error:
        verify(pair[1], "demo", problem)
    assert "--no-images" in error.value.got
    assert "Evaluate into another folder with the same arguments" in error.value.remedy
    with pytest.raises(RunError, match="keeps its adversarials"):
        pair[1].adversarials()


@pytest.mark.parametrize("images", [True, False])
def test_a_run_goes_on_as_it_began(images: bool, pair: tuple[Run, Run], problem: Problem) -> None:
    run = pair[0 if images else 1]
    again = evaluate(
        "demo", problem, Linf(0.1), attacks.PGD(steps=3), out=run.path, resume=True, images=images, progress=False
    )
    assert again.rows().equals(run.rows())
    with pytest.raises(RunError, match=f"Pass images={images}"):
        evaluate(
            "demo", problem, Linf(0.1), attacks.PGD(steps=3), out=run.path, resume=True, images=not images,
            progress=False,
        )  # fmt: skip


def test_summaries_read_only_what_they_need(pair: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    whole = files.read_rows

    def spy(path: Path, columns: Any = None, listed: Any = None) -> Any:
        read.append(columns)
        return whole(path, columns, listed)

    monkeypatch.setattr(files, "read_rows", spy)
    full, run = Run.open(pair[0].path), Run.open(pair[0].path)
    full.rows()
    assert read and set(read) == {None}
    read.clear()
    same = [str(r) for r in (run, full)]
    assert same[0] == same[1]
    assert None not in read
    assert run.numbers().equals(full.rows().select(run.numbers().column_names))
    assert np.array_equal(run.skipped(), full.skipped())
