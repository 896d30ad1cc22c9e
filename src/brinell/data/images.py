"""Folders of pictures, one per class, decoded as they are needed. The only file here that needs Pillow."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from brinell.errors import InputError, MissingExtra, error_text, one_of

__all__ = ["BENCHMARK", "PREPROCESSINGS", "Images", "Preprocessing", "class_folders", "preprocessing"]

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".webp", ".tif", ".tiff")
# RobustBench measures ImageNet models on 5,000 of the validation images; the sha256 of the file that lists them.
BENCHMARK = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
SPLITS = {"train", "val", "test"}
LEVELS = 255


@dataclass(frozen=True)
class Preprocessing:
    """What happens to a picture before a model sees it: the size, then the middle of it.

    `resize` is the length of the shorter side, or height and width; `crop` the side of the square cut out of the
    middle, filled up with black where the picture is smaller. None: left as it is. Bytes become value / 255.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | None = None
    interpolation: str = "bilinear"


PREPROCESSINGS = {
    "Res256Crop224": Preprocessing(256, 224),
    "BicubicRes256Crop224": Preprocessing(256, 224, "bicubic"),
    "Crop288": Preprocessing(crop=288),
    "Res224": Preprocessing((224, 224)),
    "none": Preprocessing(),
}


def preprocessing(wanted: str | Preprocessing) -> Preprocessing:
    """The one of this name, or the given one.

    >>> preprocessing("Res256Crop224")
    Preprocessing(resize=256, crop=224, interpolation='bilinear')
    """
    if isinstance(wanted, Preprocessing):
        return wanted
    return PREPROCESSINGS[one_of("a preprocessing", wanted, PREPROCESSINGS)]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(
            expected="Pillow, which decodes pictures",
            got="no such package",
            remedy="Install it: pip install 'brinell[images]'.",
        ) from None
    return Image


def resized(size: tuple[int, int], wanted: int | tuple[int, int] | None) -> tuple[int, int]:
    """Width and height after `resize`; the longer side is rounded down.

    >>> resized((500, 375), 256)
    (341, 256)
    """
    if wanted is None:
        return size
    if not isinstance(wanted, int):
        return wanted[1], wanted[0]
    width, height = size
    return (wanted, wanted * height // width) if width <= height else (wanted * width // height, wanted)


def middle(size: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a square in the middle; beyond the picture where it is smaller.

    A missing odd pixel is added on the right and at the bottom; one too many is cut off where half rounds to even.

    >>> middle((341, 256), 224), middle((223, 224), 224)
    ((58, 16, 282, 240), (0, 0, 224, 224))
    """
    left, top = (round((s - side) / 2) if s >= side else -((side - s) // 2) for s in size)
    return left, top, left + side, top + side


class Images(Dataset[tuple[Tensor, int]]):
    """Pictures by their paths, read when asked for: (3, height, width) in [0, 1], and a label."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], steps: Preprocessing) -> None:
        one_of("an interpolation", steps.interpolation, ("nearest", "bilinear", "bicubic", "lanczos"))
        self.files, self.labels, self.steps = tuple(files), tuple(labels), steps

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x = self._picture(self.files[i])
        if x.shape[1:] != self._size:
            raise InputError(
                expected=f"pictures of one size, {self._size[1]} x {self._size[0]} like the first",
                got=f"{x.shape[2]} x {x.shape[1]} in {self.files[i]}",
                remedy="Choose a preprocessing that crops or resizes them, e.g. Res256Crop224.",
            )
        return x, self.labels[i]

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, int]]:
        # Decoding leaves Python alone, so that threads help.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(self.__getitem__, places))

    @cached_property
    def _size(self) -> tuple[int, ...]:
        return tuple(self._picture(self.files[0]).shape[1:])

    def _picture(self, path: Path) -> Tensor:
        pillow = _pillow()
        try:
            with pillow.open(path) as file:
                image = file.convert("RGB")
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise InputError(
                expected=f"a picture in {path}",
                got=error_text(error),
                remedy="Restore the file.",
            ) from error
        size = resized(image.size, self.steps.resize)
        if size != image.size:
            image = image.resize(size, pillow.Resampling[self.steps.interpolation.upper()])
        if self.steps.crop is not None:
            image = image.crop(middle(image.size, self.steps.crop))
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return values.to(torch.float32) / LEVELS


def class_folders(folder: Path, steps: Preprocessing, paths: Path | None = None, classes: int | None = None) -> Images:
    """The pictures of a folder of class folders; a label is a folder's place in sorted order.

    `paths` names a text file that chooses pictures and their order, a line each: class folder/file. `classes` is how
    many folders there must be: one that is missing would move the labels of all that follow.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if classes is not None and len(names) != classes:
        raise InputError(
            expected=f"{classes} class folders in {folder}",
            got=f"{len(names)}",
            remedy="Make empty folders for classes without pictures: a label is a folder's place in sorted order.",
        )
    if not names or set(names) <= SPLITS:
        raise InputError(
            expected=f"class folders in {folder}",
            got=", ".join(names) or "no folders",
            remedy="Name the folder that holds one folder for each class.",
        )
    label = {name: i for i, name in enumerate(names)}
    chosen = _listed(paths, label) if paths is not None else _all(folder, names)
    files = [folder / name / file for name, file in chosen]
    _refuse_absent(files, folder)
    return Images(files, [label[name] for name, _ in chosen], steps)


def _all(folder: Path, names: list[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        inside = sorted(e.name for e in os.scandir(folder / name) if e.name.lower().endswith(SUFFIXES))
        found += [(name, file) for file in inside]
    return found


def _listed(paths: Path, label: dict[str, int]) -> list[tuple[str, str]]:
    try:
        lines = [line.strip() for line in paths.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            expected="a text file of paths, a line each: class folder/file",
            got=f"{paths} ({type(error).__name__})",
            remedy="Check paths.",
        ) from error
    found = [PurePosixPath(line).parts[-2:] for line in lines]
    bad = next(
        (line for line, parts in zip(lines, found, strict=True) if len(parts) < 2 or parts[0] not in label), None
    )
    if bad is not None or not lines:
        raise InputError(
            expected=f"paths in {paths.name} such as {next(iter(label))}/picture.JPEG",
            got=repr(bad) if lines else "no lines",
            remedy="The first part must be one of the class folders.",
        )
    return [(parts[0], parts[1]) for parts in found]


def _refuse_absent(files: list[Path], folder: Path) -> None:
    absent = [f for f in files if not f.is_file()]
    if absent or not files:
        raise InputError(
            expected=f"{len(files) or 'some'} pictures in the class folders of {folder}",
            got=f"{len(absent)} missing, e.g. {absent[0].relative_to(folder)}" if absent else "none",
            remedy="Unpack the data set again, or check root and paths.",
        )


def is_benchmark(paths: Path) -> bool:
    """Whether this is RobustBench's list of 5,000 pictures."""
    return hashlib.sha256(paths.read_bytes()).hexdigest() == BENCHMARK
