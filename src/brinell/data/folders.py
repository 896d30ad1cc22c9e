"""Arrays x and y from a file, or from a folder as CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST are published."""

import gzip
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from brinell.data.arrays import ENDS, read_file
from brinell.errors import InputError, one_of

SPLITS = ("train", "test")
CIFAR10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
IDX = {"train": "train", "test": "t10k"}
# What a pickle of CIFAR needs besides plain Python values. Anything else in it could be a call to anything.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class _Arrays(pickle.Unpickler):
    """Reads numpy arrays and plain values, and nothing that runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read(source: str | os.PathLike[str], split: str = "train") -> dict[str, Any]:
    """The arrays x (bytes, or floats in [0, 1]) and y of a .npz or .safetensors file or of a folder of such a data set.

    A folder holds `data_batch_1` … `test_batch` (CIFAR-10), `train` and `test` (CIFAR-100), or idx files such as
    `train-images-idx3-ubyte.gz` (MNIST, Fashion-MNIST). `split` chooses among a folder's "train" and "test".
    """
    one_of("a split", split, SPLITS)
    path = Path(source)
    if not path.is_dir() or path.suffix in ENDS:
        return read_file(path)
    if (path / CIFAR10[split][0]).exists():
        return _cifar([path / name for name in CIFAR10[split]], b"labels")
    if (path / split).is_file():
        return _cifar([path / split], b"fine_labels")
    images = _idx_file(path, f"{IDX[split]}-images-idx3-ubyte")
    if images is not None:
        labels = _idx_file(path, f"{IDX[split]}-labels-idx1-ubyte") or path / f"{IDX[split]}-labels-idx1-ubyte.gz"
        return {"x": _idx(images, 3)[:, None], "y": _idx(labels, 1).astype(np.int64)}
    raise InputError(
        expected=f"a folder with the files of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST ({split} split)",
        got=f"{path} with {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}",
        remedy="Unpack the archive as it is published, or save x and y with numpy.savez.",
    )


def _cifar(files: list[Path], labels: bytes) -> dict[str, Any]:
    parts = [_unpickled(file, labels) for file in files]
    return {"x": np.concatenate([x for x, _ in parts]), "y": np.concatenate([y for _, y in parts])}


def _unpickled(path: Path, labels: bytes) -> tuple[Any, Any]:
    try:
        with open(path, "rb") as file:
            stored = _Arrays(file, encoding="bytes").load()
        x = np.asarray(stored[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return x, np.asarray(stored[labels], dtype=np.int64)
    # Whatever bytes make of a pickle reader, they are not CIFAR.
    except Exception as error:
        raise _unreadable(path, error) from error


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)


def _idx(path: Path, rank: int) -> Any:
    """The bytes of an idx file: two zeros, 8 for unsigned bytes, the rank, big-endian sizes, the data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if raw[:4] != bytes((0, 0, 8, rank)):
            raise ValueError(f"it starts with {raw[:4]!r}")
        shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(int(n) for n in shape)).copy()
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        expected=f"a readable file {path.name} of plain arrays",
        got=f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}",
        remedy="Download and unpack the data set again.",
    )
