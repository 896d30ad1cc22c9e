"""Layouts of GTSRB, Tiny-ImageNet, CINIC-10, Describable Textures and HAR: labels from folders or lists."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from brinell.data import array_formats
from brinell.data.image_folders import SUFFIXES, Images, class_folders
from brinell.data.layouts import Arrays, Layout, Subset
from brinell.errors import InputError

# Reading a list of labels that is not one.
WRONG = (OSError, UnicodeDecodeError, ValueError, KeyError, csv.Error)


def _images(folder: Path, listed: Sequence[tuple[str, int]], subset: Subset) -> Images:
    """Return the pictures of `listed`, pairs of path below the folder and label; raise an error if one is missing."""
    files = [folder / name for name, _ in listed]
    absent = [f for f in files if not f.is_file()]
    if absent or not files:
        raise InputError(
            expected=f"{len(files) or 'some'} listed pictures in {folder}",
            got=f"{len(absent)} missing pictures, e.g. {absent[0].name}" if absent else "none",
            remedy="Unpack the data set again, or pass another `root`.",
        )
    return Images(files, [label for _, label in listed], subset.steps)


@dataclass(frozen=True)
class TrafficSigns(Layout):
    """The layout of GTSRB: class folders of training pictures (.ppm); test pictures with a table of their classes."""

    classes: int = 43
    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing")
    folder = "GTSRB"

    def places(self, subset: Subset) -> tuple[str, ...]:
        return ("GTSRB/Final_Training/Images",) if subset.split == "train" else (".",)

    def files(self, subset: Subset) -> tuple[str, ...]:
        return ("00000",) if subset.split == "train" else ("GT-final_test.csv", "GTSRB/Final_Test/Images")

    def read(self, folder: Path, subset: Subset) -> Images:
        if subset.split == "train":
            return class_folders(folder, subset.steps, classes=self.classes)
        table, pictures = (folder / name for name in self.files(subset))
        try:
            with table.open(newline="", encoding="utf-8") as file:
                listed = [(row["Filename"], int(row["ClassId"])) for row in csv.DictReader(file, delimiter=";")]
        except WRONG as error:
            raise array_formats.unreadable(table, error) from error
        return _images(pictures, listed, subset)


@dataclass(frozen=True)
class TinyImages(Layout):
    """The layout of Tiny-ImageNet: folders CLASS/images for training; the test split is `val`, with a table of classes.

    A label is the position of the class, such as n01443537, in sorted order.
    """

    classes: int = 200
    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing")
    folder = "tiny-imagenet-200"

    def places(self, subset: Subset) -> tuple[str, ...]:
        part = "train" if subset.split == "train" else "val"
        return (f"{self.folder}/{part}", part)

    def files(self, subset: Subset) -> tuple[str, ...]:
        return ("n01443537",) if subset.split == "train" else ("val_annotations.txt", "images")

    def read(self, folder: Path, subset: Subset) -> Images:
        if subset.split == "train":
            names = sorted(p.name for p in folder.iterdir() if (p / "images").is_dir())
            listed = [
                (f"{name}/images/{p.name}", name)
                for name in names
                for p in sorted((folder / name / "images").iterdir())
                if p.name.lower().endswith(SUFFIXES)
            ]
        else:
            listed = self._annotated(folder / "val_annotations.txt")
        position = {name: i for i, name in enumerate(sorted({name for _, name in listed}))}
        if len(position) != self.classes:
            raise InputError(
                expected=f"pictures of {self.classes} classes in {folder}",
                got=f"pictures of {len(position)} classes",
                remedy="Unpack tiny-imagenet-200.zip again: labels are positions in the sorted list of all classes.",
            )
        return _images(folder, [(file, position[name]) for file, name in listed], subset)

    def _annotated(self, table: Path) -> list[tuple[str, str]]:
        try:
            with table.open(newline="", encoding="utf-8") as file:
                return [(f"images/{row[0]}", row[1]) for row in csv.reader(file, delimiter="\t") if row]
        except (*WRONG, IndexError) as error:
            raise array_formats.unreadable(table, error) from error


@dataclass(frozen=True)
class SplitFolders(Layout):
    """The layout of CINIC-10: class folders below `test`, `train` and `valid`; labels are those of CIFAR-10."""

    classes: int = 10
    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing")
    folder = "CINIC-10"

    def subsets(self) -> tuple[Subset, ...]:
        return tuple(Subset(split) for split in ("test", "train", "valid"))

    def places(self, subset: Subset) -> tuple[str, ...]:
        return (subset.split, f"{self.folder}/{subset.split}")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return ("airplane", "truck")

    def read(self, folder: Path, subset: Subset) -> Images:
        return class_folders(folder, subset.steps, classes=self.classes)


@dataclass(frozen=True)
class Textures(Layout):
    """The layout of Describable Textures: class folders below `images`, and lists of the pictures of each split.

    The lists are those of the first of ten partitions. The split "all" has every picture and needs no list.
    """

    classes: int = 47
    options: ClassVar[tuple[str, ...]] = ("split", "preprocessing")
    folder = "dtd"

    def subsets(self) -> tuple[Subset, ...]:
        return tuple(Subset(split) for split in ("test", "train", "val", "all"))

    def files(self, subset: Subset) -> tuple[str, ...]:
        return ("images",) if subset.split == "all" else ("images", f"labels/{subset.split}1.txt")

    def read(self, folder: Path, subset: Subset) -> Images:
        listed = None if subset.split == "all" else folder / self.files(subset)[1]
        return class_folders(folder / "images", subset.steps, listed, self.classes)


@dataclass(frozen=True)
class FeatureTables(Layout):
    """The layout of HAR: a line of 561 features per sample; `read` rescales to [0, 1] and starts labels at 0."""

    features: int = 561
    folder = "UCI HAR Dataset"

    def places(self, subset: Subset) -> tuple[str, ...]:
        return (f"{self.folder}/{subset.split}", subset.split, ".")

    def files(self, subset: Subset) -> tuple[str, ...]:
        return (f"X_{subset.split}.txt", f"y_{subset.split}.txt")

    def read(self, folder: Path, subset: Subset) -> Arrays:
        values, labels = (folder / name for name in self.files(subset))
        try:
            x = np.loadtxt(values, dtype=np.float64, ndmin=2)
            y = np.loadtxt(labels, dtype=np.int64, ndmin=1)
            if x.shape != (len(y), self.features) or not (np.abs(x) <= 1).all():
                raise ValueError(f"shape {x.shape}, not {len(y)} lines of {self.features} values from -1 to 1")
        except array_formats.DAMAGE as error:
            raise array_formats.unreadable(values, error) from error
        return Arrays(((x + 1) / 2).astype(np.float32), y - 1)
