"""Data sets as they are published: read exactly, and never run."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brinell import InputError
from brinell.data import load
from brinell.data.local_files import read
from brinell.train.samples import as_samples

R = np.random.default_rng(0)


def images(n: int) -> Any:
    return R.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def idx(values: Any) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return head + values.astype(np.uint8).tobytes()


@pytest.fixture
def cifar10(tmp_path: Path) -> tuple[Path, Any, Any]:
    x, y = images(12), R.integers(0, 10, 12)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        part = slice(2 * i, 2 * i + 2)
        # Keys of bytes, as the published files have them.
        stored = {b"data": x[part].reshape(2, 3072), b"labels": y[part].tolist(), b"filenames": [b"a.png", b"b.png"]}
        (tmp_path / name).write_bytes(pickle.dumps(stored, protocol=2))
    return tmp_path, x, y


def test_cifar10(cifar10: tuple[Path, Any, Any]) -> None:
    folder, x, y = cifar10
    samples = as_samples(folder)
    assert np.array_equal(samples.x.numpy(), x[:10])
    assert samples.x.dtype == torch.uint8
    assert samples.y.tolist() == y[:10].tolist()
    test = load(folder)
    assert torch.equal(test.x, torch.from_numpy(x[10:]).float() / 255)
    assert test.y.tolist() == y[10:].tolist()
    assert test.name == folder.name


def test_cifar100(tmp_path: Path) -> None:
    x = images(3)
    for split in ("train", "test"):
        stored = {b"data": x.reshape(3, 3072), b"fine_labels": [5, 99, 0], b"coarse_labels": [1, 2, 3]}
        (tmp_path / split).write_bytes(pickle.dumps(stored, protocol=2))
    assert np.array_equal(read(tmp_path)["x"], x)
    assert read(tmp_path, "test")["y"].tolist() == [5, 99, 0]


@pytest.mark.parametrize("packed", [True, False])
def test_idx(packed: bool, tmp_path: Path) -> None:
    x, y = R.integers(0, 256, (5, 28, 28), dtype=np.uint8), np.array([3, 1, 4, 1, 5])
    for name, values in (("train-images-idx3-ubyte", x), ("train-labels-idx1-ubyte", y)):
        data = gzip.compress(idx(values)) if packed else idx(values)
        (tmp_path / (name + ".gz" * packed)).write_bytes(data)
    samples = as_samples(str(tmp_path))
    assert np.array_equal(samples.x.numpy(), x[:, None])
    assert samples.y.tolist() == y.tolist()
    with pytest.raises(InputError, match="test split"):
        load(tmp_path)
    (tmp_path / ("train-labels-idx1-ubyte" + ".gz" * packed)).unlink()
    with pytest.raises(InputError, match="train-labels"):
        read(tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_never_runs(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": Evil()}, protocol=protocol))
    with pytest.raises(InputError, match=r"(posix|os|nt)\.system"):
        read(tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "bad",
    [b"nonsense", b"", pickle.dumps([1]), pickle.dumps({b"data": np.zeros((2, 7), np.uint8), b"fine_labels": [0, 1]})],
    ids=["bytes", "empty", "list", "shape"],
)
def test_damaged_pickles(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(bad)
    with pytest.raises(InputError, match="readable file train"):
        read(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [b"nonsense", gzip.compress(b"\0\0\x09\x03"), gzip.compress(idx(np.zeros((2, 3, 3)))[:-1])],
    # Named, because gzip writes the time into its header and every worker must collect the same tests.
    ids=["bytes", "header", "short"],
)
def test_damaged_idx(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bad)
    with pytest.raises(InputError, match="readable file train-images"):
        read(tmp_path)


def test_other_folders(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        read(tmp_path)


def test_files(tmp_path: Path) -> None:
    x = images(4)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(4), ids=np.array([9, 8, 7, 6]))
    samples = as_samples(tmp_path / "a.npz")
    assert samples.x.dtype == torch.uint8
    assert samples.ids.tolist() == [9, 8, 7, 6]
    assert samples.name == "a.npz"
