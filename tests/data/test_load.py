"""Problems from names and files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from brinell import InputError
from brinell.data import load


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {"x": generator.random((5, 2, 3), dtype=np.float32), "y": np.array([0, 1, 2, 1, 0])}


def test_demo_by_name() -> None:
    problem = load("demo")
    assert (len(problem), problem.shape(), problem.name) == (1000, (1, 28, 28), "demo")
    assert torch.equal(load("demo", n=7).x, problem.x[:7])


@pytest.mark.parametrize("end", ["npz", "safetensors"])
def test_files(end: str, tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / f"some.{end}"
    if end == "npz":
        np.savez(path, **arrays, ids=np.array([5, 4, 3, 2, 1]))
    else:
        save_file({**arrays, "ids": np.array([5, 4, 3, 2, 1])}, path)
    problem = load(path)
    assert torch.equal(problem.x, torch.from_numpy(arrays["x"]))
    assert problem.y.tolist() == [0, 1, 2, 1, 0]
    assert problem.ids.tolist() == [5, 4, 3, 2, 1]
    assert problem.name == f"some.{end}"
    assert load(str(path), 2).ids.tolist() == [5, 4]


def test_ids_are_positions_unless_given(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert load(tmp_path / "a.npz").ids.tolist() == [0, 1, 2, 3, 4]


def test_double_precision_is_rounded(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "a.npz", x=arrays["x"].astype(np.float64), y=arrays["y"])
    assert load(tmp_path / "a.npz").x.dtype == torch.float32


@pytest.mark.parametrize("n", [0, -3])
def test_n_is_positive(n: int) -> None:
    with pytest.raises(InputError, match="n of at least 1"):
        load("demo", n)


def test_missing_file() -> None:
    with pytest.raises(InputError, match="does not exist"):
        load("nowhere.npz")


def test_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(InputError, match=r"numpy\.savez"):
        load(tmp_path / "a.csv")


def test_missing_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match=r"a\.npz with images"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"nonsense" * 10)
    with pytest.raises(InputError, match=f"readable file {name}"):
        load(tmp_path / name)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(InputError, match="readable file"):
        load(tmp_path / "a.npz")
