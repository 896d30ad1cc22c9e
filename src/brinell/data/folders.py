"""Arrays x and y from a file, or from a folder as CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST are published."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from brinell.data import raw
from brinell.data.arrays import ENDS, read_file
from brinell.errors import InputError, one_of

SPLITS = ("train", "test")
CIFAR10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
IDX = {"train": "train", "test": "t10k"}


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
        return {"x": raw.idx(images, 3)[:, None], "y": raw.idx(labels, 1).astype(np.int64)}
    raise InputError(
        expected=f"a folder with the files of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST ({split} split), or with one "
        "folder of pictures per class",
        got=f"{path} with {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}",
        remedy="Unpack the archive as it is published, or save x and y with numpy.savez.",
    )


def published(path: Path) -> bool:
    """Whether a folder has files of CIFAR or MNIST, of any split."""
    cifar = [name for names in CIFAR10.values() for name in names] + list(SPLITS)
    if any((path / name).is_file() for name in cifar):
        return True
    return any(_idx_file(path, f"{start}-images-idx3-ubyte") is not None for start in IDX.values())


def _cifar(files: list[Path], labels: bytes) -> dict[str, Any]:
    parts = [raw.cifar(file, labels) for file in files]
    return {"x": np.concatenate([x for x, _ in parts]), "y": np.concatenate([y for _, y in parts])}


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)
