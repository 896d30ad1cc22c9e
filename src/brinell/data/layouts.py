"""How data sets lie on disk: which files a part of one needs, where below a root they may be, and what is in them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from brinell.data import raw
from brinell.data.images import Images, Preprocessing, class_folders
from brinell.data.mat import read_mat
from brinell.errors import InputError

__all__ = ["Arrays", "Choice", "Layout"]

SPLITS, SEVERITIES = ("test", "train"), (1, 2, 3, 4, 5)
# The first of ImageNet's classes: where its folder is, the others are beside it.
FIRST_CLASS, IMAGENET_CLASSES = "n01440764", 1000


@dataclass(frozen=True)
class Choice:
    """The part of a data set that is wanted; what a set does not have is empty."""

    split: str = "test"
    version: str = ""
    corruption: str = ""
    severity: int = 0
    steps: Preprocessing = field(default_factory=Preprocessing)
    paths: Path | None = None

    @property
    def label(self) -> str:
        """The part in words: "train", "fog/3", "" for the test split."""
        corrupted = f"{self.corruption}/{self.severity}" if self.corruption else ""
        return "/".join(p for p in (self.split.replace("test", ""), self.version, corrupted) if p)


class Arrays(NamedTuple):
    """Images of bytes, (n, channels, height, width), perhaps still on disk, and their labels."""

    x: Any
    y: Any


@runtime_checkable
class Layout(Protocol):
    """`options` are those a user may choose by; `choices` are all parts there must be."""

    @property
    def options(self) -> tuple[str, ...]: ...
    def choices(self) -> tuple[Choice, ...]: ...
    def places(self, choice: Choice) -> tuple[str, ...]:
        """Folders below a root where the files may be, the likeliest first."""
        ...

    def files(self, choice: Choice) -> tuple[str, ...]:
        """Names that must be there."""
        ...

    def read(self, folder: Path, choice: Choice) -> Arrays | Images: ...


@dataclass(frozen=True)
class Pickled:
    """CIFAR-10 and CIFAR-100: batches of pickled arrays; which files make a split, and the name of their labels."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    options: ClassVar[tuple[str, ...]] = ("split",)

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(split) for split in SPLITS)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return (self.folder, ".")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return self.train if choice.split == "train" else self.test

    def read(self, folder: Path, choice: Choice) -> Arrays:
        parts = [raw.cifar(folder / name, self.labels.encode()) for name in self.files(choice)]
        return Arrays(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


@dataclass(frozen=True)
class Idx:
    """MNIST and Fashion-MNIST: one idx file of images and one of labels, packed or not."""

    folder: str
    options: ClassVar[tuple[str, ...]] = ("split",)

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(split) for split in SPLITS)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return (".", f"{self.folder}/raw", "raw", self.folder)

    def files(self, choice: Choice) -> tuple[str, ...]:
        start = "train" if choice.split == "train" else "t10k"
        return (f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte")

    def read(self, folder: Path, choice: Choice) -> Arrays:
        images, labels = (present(folder, name) or folder / name for name in self.files(choice))
        x, y = raw.idx(images, 3)[:, None], raw.idx(labels, 1).astype(np.int64)
        return _paired(Arrays(x, y), labels)


@dataclass(frozen=True)
class Mat:
    """SVHN: MATLAB files with X (32, 32, 3, n) and y, in which ten stands for zero; perhaps one with extra images."""

    options: ClassVar[tuple[str, ...]] = ("split",)
    optional: ClassVar[tuple[Choice, ...]] = (Choice("extra"),)

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(split) for split in SPLITS)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return (".", "SVHN", "svhn")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return (f"{choice.split}_32x32.mat",)

    def read(self, folder: Path, choice: Choice) -> Arrays:
        path = folder / self.files(choice)[0]
        x, y = read_mat(path, "X", "y")
        if x.dtype != np.uint8 or x.ndim != 4:
            raise raw.unreadable(path, ValueError(f"X is {x.dtype} of shape {x.shape}, not bytes (32, 32, 3, n)"))
        return _paired(Arrays(x.transpose(3, 2, 0, 1), y.reshape(-1).astype(np.int64) % 10), path)


@dataclass(frozen=True)
class Versions:
    """CIFAR-10.1: two .npy files for each version; the first one named is taken unless told otherwise."""

    versions: tuple[str, ...]
    options: ClassVar[tuple[str, ...]] = ("version",)

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(version=v) for v in self.versions)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return (".", "datasets", "CIFAR-10.1/datasets", "CIFAR-10.1")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return (f"cifar10.1_{choice.version}_data.npy", f"cifar10.1_{choice.version}_labels.npy")

    def read(self, folder: Path, choice: Choice) -> Arrays:
        data, labels = self.files(choice)
        x = raw.tiles(folder / data)
        return Arrays(x, raw.labels(folder / labels, len(x)))


@dataclass(frozen=True)
class CorruptedArrays:
    """CIFAR-10-C and CIFAR-100-C: a .npy file for each corruption with one severity after the other, common labels."""

    folder: str
    corruptions: tuple[str, ...]
    extra: tuple[str, ...] = ()
    options: ClassVar[tuple[str, ...]] = ("corruption", "severity")

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(corruption=c, severity=s) for c in self.corruptions for s in SEVERITIES)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return (self.folder, ".")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return (f"{choice.corruption}.npy", "labels.npy")

    def read(self, folder: Path, choice: Choice) -> Arrays:
        data, labels = self.files(choice)
        x = raw.tiles(folder / data)
        each, rest = divmod(len(x), len(SEVERITIES))
        if rest or not each:
            raise raw.unreadable(folder / data, ValueError(f"{len(x)} images are not {len(SEVERITIES)} equal parts"))
        rows = slice((choice.severity - 1) * each, choice.severity * each)
        return Arrays(x[rows], raw.labels(folder / labels, len(x))[rows])


@dataclass(frozen=True)
class ClassFolders:
    """ImageNet: a folder for each class, below `val` and `train`."""

    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing", "paths")

    def choices(self) -> tuple[Choice, ...]:
        return (Choice(),)

    def places(self, choice: Choice) -> tuple[str, ...]:
        return ("train",) if choice.split == "train" else ("val", ".")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return (FIRST_CLASS,)

    def read(self, folder: Path, choice: Choice) -> Images:
        return class_folders(folder, choice.steps, choice.paths, IMAGENET_CLASSES)


@dataclass(frozen=True)
class CorruptedFolders:
    """ImageNet-C and ImageNet-3DCC: corruption/severity/class folders."""

    folder: str
    corruptions: tuple[str, ...]
    extra: tuple[str, ...] = ()
    options: ClassVar[tuple[str, ...]] = ("corruption", "severity", "preprocessing", "paths")

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(corruption=c, severity=s) for c in self.corruptions for s in SEVERITIES)

    def places(self, choice: Choice) -> tuple[str, ...]:
        inner = f"{choice.corruption}/{choice.severity}"
        return (inner, f"{self.folder}/{inner}")

    def files(self, choice: Choice) -> tuple[str, ...]:
        return (FIRST_CLASS,)

    def read(self, folder: Path, choice: Choice) -> Images:
        return class_folders(folder, choice.steps, choice.paths, IMAGENET_CLASSES)


def present(folder: Path, name: str) -> Path | None:
    """The file or folder of this name, or its packed form."""
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)


def locate(layout: Layout, choice: Choice, root: Path) -> Path | None:
    """The first of the layout's places below the root that has every file."""
    folders = [root / place for place in layout.places(choice)]
    wanted = layout.files(choice)
    return next((f for f in folders if all(present(f, name) is not None for name in wanted)), None)


def _paired(arrays: Arrays, path: Path) -> Arrays:
    if len(arrays.x) != len(arrays.y):
        raise InputError(
            expected=f"{len(arrays.x)} labels in {path.name}",
            got=f"{len(arrays.y)}",
            remedy="The files belong to different sets: download them again.",
        )
    return arrays
