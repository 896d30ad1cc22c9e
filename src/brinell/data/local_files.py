"""Read arrays x and y from a user's file, or from a folder in the published layout of CIFAR or MNIST."""

import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from brinell.data import array_formats
from brinell.data.array_formats import DAMAGE
from brinell.errors import InputError, error_text, one_of

SUFFIXES = (".npz", ".safetensors")

SPLITS = ("train", "test")
CIFAR10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
IDX = {"train": "train", "test": "t10k"}


def read(source: str | os.PathLike[str], split: str = "train") -> dict[str, Any]:
    """Read the arrays x (bytes, or floats in [0, 1]) and y of a .npz or .safetensors file or of a published folder.

    A folder holds `data_batch_1` … `test_batch` (CIFAR-10), `train` and `test` (CIFAR-100), or idx files such as
    `train-images-idx3-ubyte.gz` (MNIST, Fashion-MNIST). `split` is "train" or "test" and applies to folders.
    """
    one_of("a split", split, SPLITS)
    path = Path(source)
    if not path.is_dir() or path.suffix in SUFFIXES:
        return read_file(path)
    if (path / CIFAR10[split][0]).exists():
        return _cifar([path / name for name in CIFAR10[split]], b"labels")
    if (path / split).is_file():
        return _cifar([path / split], b"fine_labels")
    images = _idx_file(path, f"{IDX[split]}-images-idx3-ubyte")
    if images is not None:
        labels = _idx_file(path, f"{IDX[split]}-labels-idx1-ubyte") or path / f"{IDX[split]}-labels-idx1-ubyte.gz"
        return {"x": array_formats.idx(images, 3)[:, None], "y": array_formats.idx(labels, 1).astype(np.int64)}
    raise InputError(
        expected=f"a folder with the files of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST ({split} split), or with one "
        "folder of pictures per class",
        got=f"{path} with {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}",
        remedy="Unpack the archive as it is published, or save x and y with numpy.savez.",
    )


def published(path: Path) -> bool:
    """Return whether a folder has files of CIFAR or MNIST, of any split."""
    cifar = [name for names in CIFAR10.values() for name in names] + list(SPLITS)
    if any((path / name).is_file() for name in cifar):
        return True
    return any(_idx_file(path, f"{start}-images-idx3-ubyte") is not None for start in IDX.values())


def _cifar(files: list[Path], labels: bytes) -> dict[str, Any]:
    parts = [array_formats.cifar(file, labels) for file in files]
    return {"x": np.concatenate([x for x, _ in parts]), "y": np.concatenate([y for _, y in parts])}


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)


def _arrays(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    # Open the file here, because numpy does not close a file that it cannot read.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: _native(archive[name]) for name in archive}


def _native(x: Any) -> Any:
    """Convert to the byte order of this machine, the only one that tensors support."""
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def read_file(path: Path) -> dict[str, Any]:
    """Read the arrays of a file, which must contain x and y."""
    if not path.exists():
        raise InputError(
            expected="a file or a folder",
            got=f"{path}, which does not exist",
            remedy="Check the path.",
        )
    if path.suffix not in SUFFIXES:
        raise InputError(
            expected="a .npz or .safetensors file",
            got=path.name,
            remedy="Save x, y and optionally ids with numpy.savez.",
        )
    try:
        stored = _arrays(path)
    except (*DAMAGE, KeyError, BadZipFile, SafetensorError) as error:
        raise InputError(
            expected=f"a readable file {path.name} of plain arrays",
            got=error_text(error),
            remedy="Save it again with numpy.savez(path, x=x, y=y).",
        ) from error
    missing = [k for k in ("x", "y") if k not in stored]
    if missing:
        raise InputError(
            expected="arrays x (inputs) and y (labels)",
            got=f"{path.name} with {', '.join(sorted(stored)) or 'nothing'}",
            remedy="Save them as numpy.savez(path, x=x, y=y).",
        )
    return stored
