"""Layouts of data sets on disk: the files of each subset, the folders where they may be, and how to read them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from brinell.data import array_formats
from brinell.data.image_folders import Images, Preprocessing, class_folders
from brinell.data.matlab import read_mat
from brinell.errors import InputError

SPLITS, SEVERITIES = ("test", "train"), (1, 2, 3, 4, 5)
# The folder of the first ImageNet class. The folders of the other classes are next to it.
FIRST_CLASS, IMAGENET_CLASSES = "n01440764", 1000


@dataclass(frozen=True)
class Subset:
    """A part of a data set that the options of `load` select; options that the data set lacks keep their defaults."""

    split: str = "test"
    version: str = ""
    corruption: str = ""
    severity: int = 0
    steps: Preprocessing = field(default_factory=Preprocessing)
    paths: Path | None = None

    @property
    def label(self) -> str:
        """The subset as text, e.g. "train" or "fog/3"; "" for the test split."""
        corrupted = f"{self.corruption}/{self.severity}" if self.corruption else ""
        return "/".join(p for p in (self.split.replace("test", ""), self.version, corrupted) if p)


class Arrays(NamedTuple):
    """Inputs x, bytes (n, channels, height, width), possibly memory-mapped, or floats in [0, 1]; and labels y (n,)."""

    x: Any
    y: Any


class Layout:
    """The layout of a data set on disk; `options` are the arguments of `load` that select a subset.

    `folder` is the name of the folder in which the files are published.
    """

    options: ClassVar[tuple[str, ...]] = ("split",)
    folder: str

    def subsets(self) -> tuple[Subset, ...]:
        """Return all subsets that a complete data set has."""
        return tuple(Subset(split) for split in SPLITS)

    def optional(self) -> tuple[Subset, ...]:
        """Return the subsets that may be absent."""
        return ()

    def corruption_names(self) -> tuple[str, ...]:
        """Return the corruptions that `load` accepts for this data set."""
        return ()

    def places(self, subset: Subset) -> tuple[str, ...]:
        """Return the folders below the data set's root where the subset's files may be, the likeliest first."""
        return (self.folder, ".")

    def files(self, subset: Subset) -> tuple[str, ...]:
        """Return the names of the files (or folders) that the subset needs."""
        raise NotImplementedError

    def read(self, folder: Path, subset: Subset) -> Arrays | Images:
        """Read the files of `subset` in `folder`, and return its images and labels."""
        raise NotImplementedError


@dataclass(frozen=True)
class PickledBatches(Layout):
    """The layout of CIFAR-10 and CIFAR-100: pickled files `train` and `test`; `labels` is the key of the labels."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str

    def files(self, subset: Subset) -> tuple[str, ...]:
        return self.train if subset.split == "train" else self.test

    def read(self, folder: Path, subset: Subset) -> Arrays:
        batches = [array_formats.cifar(folder / name, self.labels.encode()) for name in self.files(subset)]
        return Arrays(np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]))


@dataclass(frozen=True)
class IdxFiles(Layout):
    """The layout of MNIST and Fashion-MNIST: one idx file of images and one idx file of labels, compressed or not."""

    folder: str

    def places(self, subset: Subset) -> tuple[str, ...]:
        return (".", f"{self.folder}/raw", "raw", self.folder)

    def files(self, subset: Subset) -> tuple[str, ...]:
        start = "train" if subset.split == "train" else "t10k"
        return (f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte")

    def read(self, folder: Path, subset: Subset) -> Arrays:
        images, labels = (present(folder, name) or folder / name for name in self.files(subset))
        x, y = array_formats.idx(images, 3)[:, None], array_formats.idx(labels, 1).astype(np.int64)
        return _paired(x, y, labels)


@dataclass(frozen=True)
class MatlabFiles(Layout):
    """The layout of SVHN: MATLAB files with X (32, 32, 3, n) and y (label 10 is digit 0); `extra` is optional."""

    def optional(self) -> tuple[Subset, ...]:
        return (Subset("extra"),)

    def places(self, subset: Subset) -> tuple[str, ...]:
        return (".", "SVHN", "svhn")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return (f"{subset.split}_32x32.mat",)

    def read(self, folder: Path, subset: Subset) -> Arrays:
        path = folder / self.files(subset)[0]
        x, y = read_mat(path, "X", "y")
        if x.dtype != np.uint8 or x.ndim != 4:
            error = ValueError(f"X is {x.dtype} of shape {x.shape}, not bytes (32, 32, 3, n)")
            raise array_formats.unreadable(path, error)
        return _paired(x.transpose(3, 2, 0, 1), y.reshape(-1).astype(np.int64) % 10, path)


@dataclass(frozen=True)
class VersionedArrays(Layout):
    """The layout of CIFAR-10.1: .npy files of images and of labels per version; the first version is the default."""

    versions: tuple[str, ...]
    options: ClassVar[tuple[str, ...]] = ("version",)

    def subsets(self) -> tuple[Subset, ...]:
        return tuple(Subset(version=v) for v in self.versions)

    def places(self, subset: Subset) -> tuple[str, ...]:
        return (".", "datasets", "CIFAR-10.1/datasets", "CIFAR-10.1")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return (f"cifar10.1_{subset.version}_data.npy", f"cifar10.1_{subset.version}_labels.npy")

    def read(self, folder: Path, subset: Subset) -> Arrays:
        data, labels = self.files(subset)
        x = array_formats.images(folder / data)
        return Arrays(x, array_formats.labels(folder / labels, len(x)))


@dataclass(frozen=True)
class _CorruptedLayout(Layout):
    """The layout of a data set of corrupted images, all severities; the corruptions in `extra` may be absent."""

    folder: str
    corruptions: tuple[str, ...]
    extra: tuple[str, ...] = ()

    def subsets(self) -> tuple[Subset, ...]:
        return tuple(Subset(corruption=c, severity=s) for c in self.corruptions for s in SEVERITIES)

    def corruption_names(self) -> tuple[str, ...]:
        return (*self.corruptions, *self.extra)


@dataclass(frozen=True)
class CorruptedArrays(_CorruptedLayout):
    """The layout of CIFAR-10-C and CIFAR-100-C: a .npy file per corruption, severities in order, and labels.npy."""

    options: ClassVar[tuple[str, ...]] = ("corruption", "severity")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return (f"{subset.corruption}.npy", "labels.npy")

    def read(self, folder: Path, subset: Subset) -> Arrays:
        data, labels = self.files(subset)
        x = array_formats.images(folder / data)
        each, rest = divmod(len(x), len(SEVERITIES))
        if rest or not each:
            error = ValueError(f"{len(x)} images cannot be divided into {len(SEVERITIES)} severities of equal size")
            raise array_formats.unreadable(folder / data, error)
        rows = slice((subset.severity - 1) * each, subset.severity * each)
        return Arrays(x[rows], array_formats.labels(folder / labels, len(x))[rows])


@dataclass(frozen=True)
class ClassFolders(Layout):
    """The layout of ImageNet: one folder per class, below `val` and `train`."""

    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing", "paths")

    def subsets(self) -> tuple[Subset, ...]:
        return (Subset(),)

    def places(self, subset: Subset) -> tuple[str, ...]:
        return ("train",) if subset.split == "train" else ("val", ".")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return (FIRST_CLASS,)

    def read(self, folder: Path, subset: Subset) -> Images:
        return class_folders(folder, subset.steps, subset.paths, IMAGENET_CLASSES)


@dataclass(frozen=True)
class CorruptedFolders(_CorruptedLayout, ClassFolders):
    """The layout of ImageNet-C and ImageNet-3DCC: folders corruption/severity/class."""

    options: ClassVar[tuple[str, ...]] = ("corruption", "severity", "preprocessing", "paths")

    def places(self, subset: Subset) -> tuple[str, ...]:
        inner = f"{subset.corruption}/{subset.severity}"
        return (inner, f"{self.folder}/{inner}")


def present(folder: Path, name: str) -> Path | None:
    """Return the path of the file NAME.gz, or of the file or folder NAME; None if neither exists."""
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)


def locate(layout: Layout, subset: Subset, root: Path) -> Path | None:
    """Return the first of the layout's folders below the root that has all files of a subset, or None."""
    folders = [root / place for place in layout.places(subset)]
    wanted = layout.files(subset)
    return next((f for f in folders if all(present(f, name) is not None for name in wanted)), None)


def _paired(x: Any, y: Any, path: Path) -> Arrays:
    if len(x) != len(y):
        remedy = "The files belong to different data sets: download them again."
        raise InputError(expected=f"{len(x)} labels in {path.name}", got=f"{len(y)}", remedy=remedy)
    return Arrays(x, y)
