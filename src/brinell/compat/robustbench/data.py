"""The loaders of RobustBench: CIFAR, ImageNet, CIFAR-C."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brinell.compat.functions import refuse_unless
from brinell.compat.robustbench.model_zoo.enums import BenchmarkDataset, as_text
from brinell.core.dataset import Problem
from brinell.data.corruptions import COMMON
from brinell.data.load import ROBUSTBENCH, load
from brinell.ops import rng

Folder = str | os.PathLike[str]
# The folders into which torchvision and the archives of corruptions unpack data sets.
FOLDERS = {
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
}
CORRUPTIONS = tuple(COMMON)
IMAGENET_SAMPLES = 5000


def in_folder(name: str, folder: Folder, n: int | None, **options: Any) -> Problem:
    """Return the first n samples of a data set below `folder`; if it is not there, those of the cache."""
    inner = Path(folder) / FOLDERS[name]
    if not inner.is_dir():
        return load(name, n, **options)
    return load(name, n, **options, root=inner) if options else load(inner, n)


def load_cifar10(
    n_examples: int | None = None, data_dir: Folder = "./data", transforms_test: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the first images of CIFAR-10's test set and their labels, from `data_dir` or else the cache."""
    return _clean("cifar10", n_examples, data_dir, transforms_test)


def load_cifar100(
    n_examples: int | None = None, data_dir: Folder = "./data", transforms_test: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the first images of CIFAR-100's test set and their labels, from `data_dir` or else the cache."""
    return _clean("cifar100", n_examples, data_dir, transforms_test)


def load_imagenet(
    n_examples: int | None = IMAGENET_SAMPLES, data_dir: Folder = "./data", transforms_test: Any = "Res256Crop224"
) -> tuple[Tensor, Tensor]:
    """Return the first images of RobustBench's list of 5,000; `transforms_test` is the name of a preprocessing."""
    root = {"root": data_dir} if Path(data_dir).is_dir() else {}
    x, y = load("imagenet", n_examples, preprocessing=transforms_test, paths=ROBUSTBENCH, **root)  # type: ignore[arg-type]
    return x, y


def _clean(name: str, n: int | None, folder: Folder, transform: Any) -> tuple[Tensor, Tensor]:
    refuse_unless(transform is None, "no transform for CIFAR", repr(transform)[:60], "Put it into the model's forward.")
    x, y = in_folder(name, folder, n)
    return x, y


def load_clean_dataset(
    dataset: BenchmarkDataset | str, n_examples: int | None, data_dir: Folder, prepr: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the first clean test images of a data set and their labels."""
    name = BenchmarkDataset(as_text(dataset))
    if name is BenchmarkDataset.imagenet:
        return load_imagenet(n_examples, data_dir, **({} if prepr is None else {"transforms_test": prepr}))
    return (load_cifar10 if name is BenchmarkDataset.cifar_10 else load_cifar100)(n_examples, data_dir, prepr)


def load_cifar10c(
    n_examples: int, severity: int = 5, data_dir: Folder = "./data", shuffle: bool = False,
    corruptions: Sequence[str] = CORRUPTIONS, _: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return images of CIFAR-10-C, the same number of every corruption; `shuffle` orders them by a fixed key."""
    return _corrupted("cifar10-c", n_examples, severity, data_dir, shuffle, corruptions)


def load_cifar100c(
    n_examples: int, severity: int = 5, data_dir: Folder = "./data", shuffle: bool = False,
    corruptions: Sequence[str] = CORRUPTIONS, _: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return images of CIFAR-100-C, the same number of every corruption; `shuffle` orders them by a fixed key."""
    return _corrupted("cifar100-c", n_examples, severity, data_dir, shuffle, corruptions)


def _corrupted(
    name: str, n: int, severity: int, folder: Folder, shuffle: bool, corruptions: Sequence[str]
) -> tuple[Tensor, Tensor]:
    each = -(-n // max(len(corruptions), 1))
    parts = [in_folder(name, folder, each, corruption=c, severity=severity) for c in corruptions]
    x, y = (torch.cat(values)[:n] for values in zip(*(tuple(part) for part in parts), strict=True))
    if shuffle:
        order = rng.uniform(rng.keys(0, torch.arange(len(y), device="cpu")), (1,))[:, 0].argsort()
        x, y = x[order], y[order]
    return x, y
