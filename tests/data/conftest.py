"""Data sets in small, written as they are published."""

import gzip
import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

# Tests are no package: under this name they import what is here.
sys.modules["published"] = sys.modules[__name__]


def pixels(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(values: Any) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return head + values.astype(np.uint8).tobytes()


def cifar10(folder: Path, each: int = 2) -> tuple[Any, Any]:
    """Five batches and a test batch; all images in that order, and their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(1, 6 * each, 3, 32, 32), np.arange(6 * each) % 10
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        part = slice(each * i, each * (i + 1))
        stored = {b"data": x[part].reshape(each, 3072), b"labels": y[part].tolist(), b"batch_label": name.encode()}
        (folder / name).write_bytes(pickle.dumps(stored, protocol=2))
    return x, y


def cifar100(folder: Path) -> tuple[Any, Any]:
    """Three images for each split, the training ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(2, 6, 3, 32, 32), np.array([99, 5, 42, 0, 77, 98])
    for split, part in (("train", slice(0, 3)), ("test", slice(3, 6))):
        stored = {b"data": x[part].reshape(3, 3072), b"fine_labels": y[part].tolist(), b"coarse_labels": [0, 1, 2]}
        (folder / split).write_bytes(pickle.dumps(stored, protocol=2))
    return x, y


def mnist(folder: Path, packed: bool = True) -> tuple[Any, Any]:
    """Four test images; the files of the training split are there too, with others."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(3, 4, 28, 28), np.array([7, 2, 1, 0])
    for start, images, labels in (("t10k", x, y), ("train", x[::-1], y[::-1])):
        for name, values in ((f"{start}-images-idx3-ubyte", images), (f"{start}-labels-idx1-ubyte", labels)):
            blob = gzip.compress(idx(values), mtime=0) if packed else idx(values)
            (folder / (name + ".gz" * packed)).write_bytes(blob)
    return x[:, None], y


def corrupted(folder: Path, corruption: str, each: int = 3) -> tuple[Any, Any]:
    """One corruption of CIFAR-10-C with `each` images a severity."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(4, 5 * each, 32, 32, 3), np.tile(np.arange(each), 5)
    np.save(folder / f"{corruption}.npy", x)
    np.save(folder / "labels.npy", y.astype(np.int64))
    return x.transpose(0, 3, 1, 2), y


def imagenet(folder: Path, pictures: dict[str, Any], classes: int = 1000) -> list[str]:
    """Class folders with sorted names and lossless pictures by class/file; returns the names of the classes."""
    from PIL import Image

    names = ["n01440764", *(f"n{2000000 + i:08d}" for i in range(classes - 1))]
    for name in names:
        (folder / name).mkdir(parents=True)
    for path, values in pictures.items():
        Image.fromarray(values).save(folder / path, format="PNG")
    return names


@pytest.fixture(scope="session")
def load_pictures() -> ModuleType:
    """The module beside this file: the tests are no package, so that it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("brinell_test_pictures", Path(__file__).with_name("pictures.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
