"""Pictures in one folder per class, decoded on demand. Of `brinell.data`, only this file needs Pillow."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from brinell.errors import InputError, import_extra, one_of, reported_as
from brinell.untrusted import read_plain

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".webp", ".tif", ".tiff")
# The list of 5,000 validation pictures on which RobustBench evaluates ImageNet models: its SHA-256 and its source.
LIST_DIGEST = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
LIST_NAME = "imagenet_test_image_ids.txt"
LIST_URLS = tuple(
    f"https://raw.githubusercontent.com/RobustBench/robustbench/{folder}/{LIST_NAME}"
    for folder in ("master/robustbench/helper_files", "7af0e34c6b383cd73ea7a1bbced358d7ce6ad22f/robustbench/data")
)
# The end of the name of a problem that has exactly these pictures.
LISTED = "robustbench-5000"
SPLITS = {"train", "val", "test"}
LONGEST_LIST = 1 << 28
LEVELS = 255
# The modes of Pillow that pictures can be read in: colours, or grey values.
MODES = ("RGB", "L")
# The modes of 16 and 32 bits, of which Pillow would keep the lowest 255 levels and make the rest white.
DEEP = ("I", "F")
ONE_PER_CLASS = "Pass the folder that holds one folder per class, with the pictures inside: FOLDER/cat/1.png."
# The formats of these suffixes. Pillow knows more, and runs other programs for some.
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP", "TIFF")
# A picture of a few kilobytes can have any number of pixels. Cameras make less than this.
MOST_PIXELS = 1 << 25
# The passes over all pixels in a progressive JPEG: usually six or ten, but forty bytes make one more.
JPEG, SCAN, MOST_SCANS = b"\xff\xd8", b"\xff\xda", 200


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of a picture: resize, then center crop.

    `resize` is the length of the shorter side, or height and width. `crop` is the side of the square center crop,
    padded with black if the picture is smaller. None skips the step. `mode` is "RGB" (three channels) or "L" (one, the
    grey value). Bytes become value / 255.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | None = None
    interpolation: str = "bilinear"
    mode: str = "RGB"


PREPROCESSINGS = {
    "Res256Crop224": Preprocessing(256, 224),
    "BicubicRes256Crop224": Preprocessing(256, 224, "bicubic"),
    "Crop288": Preprocessing(crop=288),
    "Res224": Preprocessing((224, 224)),
    "Res32": Preprocessing((32, 32)),
    "none": Preprocessing(),
}


def preprocessing(wanted: str | Preprocessing) -> Preprocessing:
    """Return the preprocessing with this name; a `Preprocessing` is returned unchanged.

    >>> preprocessing("Res256Crop224")
    Preprocessing(resize=256, crop=224, interpolation='bilinear', mode='RGB')
    """
    if isinstance(wanted, Preprocessing):
        return wanted
    return PREPROCESSINGS[one_of("a preprocessing", wanted, PREPROCESSINGS)]


def resized_shape(size: tuple[int, int], wanted: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return (width, height) of a picture of this size after the resize step `wanted`; the longer side is rounded down.

    >>> resized_shape((500, 375), 256)
    (341, 256)
    """
    if wanted is None:
        return size
    if not isinstance(wanted, int):
        return wanted[1], wanted[0]
    width, height = size
    return (wanted, wanted * height // width) if width <= height else (wanted * width // height, wanted)


def center_box(size: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the square center crop of a picture of size (width, height).

    The crop extends beyond a small picture; an odd missing pixel is added at the right or bottom. For a large picture,
    left and top are rounded half to even.

    >>> center_box((341, 256), 224), center_box((223, 224), 224)
    ((58, 16, 282, 240), (0, 0, 224, 224))
    """
    left, top = (round((s - side) / 2) if s >= side else -((side - s) // 2) for s in size)
    return left, top, left + side, top + side


class Images(Dataset[tuple[Tensor, int]]):
    """A data set of picture files, decoded on access to (channels, height, width) in [0, 1], with labels."""

    def __init__(
        self, files: Sequence[Path], labels: Sequence[int], steps: Preprocessing, classes: Sequence[str] | None = None
    ) -> None:
        one_of("an interpolation", steps.interpolation, ("nearest", "bilinear", "bicubic", "lanczos"))
        one_of("a mode", steps.mode, MODES)
        self.files, self.labels, self.steps = tuple(files), tuple(labels), steps
        self.classes = None if classes is None else tuple(classes)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def file_names(self) -> list[str]:
        """The names of the pictures: class folder and file."""
        return [f"{file.parent.name}/{file.name}" for file in self.files]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x = self._picture(self.files[i])
        if x.shape[1:] != self._size:
            raise InputError(
                expected=f"pictures of one size, {self._size[1]} x {self._size[0]} like the first one",
                got=f"{x.shape[2]} x {x.shape[1]} in {self.files[i]}",
                remedy="Pass a preprocessing that crops or resizes them: --data FOLDER,preprocessing=Res256Crop224, in "
                'Python preprocessing="Res256Crop224".',
            )
        return x, self.labels[i]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        # Decoding releases the GIL, so threads run in parallel.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(self.__getitem__, indices))

    @cached_property
    def _size(self) -> tuple[int, ...]:
        return tuple(self._picture(self.files[0]).shape[1:])

    def _picture(self, path: Path) -> Tensor:
        pillow = import_extra("PIL.Image", "images", "the package Pillow, which decodes pictures")
        expected, remedy = f"a readable picture in {path}", "Replace the file by an intact copy."
        # A damaged picture can raise any exception.
        with (
            reported_as(InputError, Exception, expected=expected, remedy=remedy),
            pillow.open(BytesIO(_encoded(path)), formats=FORMATS) as file,
        ):
            size = resized_shape(file.size, self.steps.resize)
            for width, height in (file.size, size):
                if width * height > MOST_PIXELS:
                    raise ValueError(f"{width:,} x {height:,} pixels, more than {MOST_PIXELS:,}")
            if file.mode.startswith(DEEP):
                raise InputError(
                    expected="pictures with 8 bits per channel",
                    got=f"a picture of mode {file.mode}, with more: {path}",
                    remedy="Scale it to [0, 1] yourself and save arrays: --data FILE.npz with x and y.",
                )
            image = file.convert(self.steps.mode)
        if size != image.size:
            image = image.resize(size, pillow.Resampling[self.steps.interpolation.upper()])
        if self.steps.crop is not None:
            image = image.crop(center_box(image.size, self.steps.crop))
        values = torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).contiguous()
        return values.to(torch.float32) / LEVELS


def _encoded(path: Path) -> bytes:
    """Return the content of a picture file; raise a ValueError for a JPEG with very many passes."""
    data = read_plain(path)
    if data.startswith(JPEG) and data.count(SCAN) > MOST_SCANS:
        raise ValueError(f"a JPEG with more than {MOST_SCANS} passes over all pixels")
    return data


def class_folders(folder: Path, steps: Preprocessing, paths: Path | None = None, classes: int | None = None) -> Images:
    """Return the pictures in the class folders of `folder`; a label is the class folder's position in sorted order.

    `paths` is a text file that selects pictures and their order, one "class folder/file" per line. `classes` is the
    required number of class folders, because a missing folder would shift the labels of all later classes.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if classes is not None and len(names) != classes:
        raise InputError(
            expected=f"{classes} class folders in {folder}",
            got=f"{len(names)} class folders",
            remedy="Make empty folders for classes without pictures. A label is a folder's position in sorted order.",
        )
    if not names or set(names) <= SPLITS:
        raise InputError(
            expected=f"class folders in {folder}",
            got=", ".join(names) or "no folders",
            remedy=ONE_PER_CLASS,
        )
    label = {name: i for i, name in enumerate(names)}
    chosen = [(n, file) for n in names for file in _pictures(folder / n)] if paths is None else _listed(paths, label)
    files = [folder / name / file for name, file in chosen]
    absent = [f for f in files if not f.is_file()]
    if absent or not files:
        raise InputError(
            expected=f"{len(files) or 'some'} pictures in the class folders of {folder}",
            got=f"{len(absent)} missing pictures, e.g. {absent[0].relative_to(folder)}" if absent else "none",
            remedy="Unpack the data set again, or pass another `root` or `paths`.",
        )
    return Images(files, [label[name] for name, _ in chosen], steps, names)


def _pictures(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES))


def _listed(paths: Path, label: dict[str, int]) -> list[tuple[str, str]]:
    try:
        text = read_plain(paths, LONGEST_LIST).decode()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            expected='a text file with one "class folder/file" per line',
            got=f"{paths} ({type(error).__name__})",
            remedy="Pass such a file as `paths`.",
        ) from error
    listed = [PurePosixPath(line).parts[-2:] for line in lines]
    wrong = [line for line, ends in zip(lines, listed, strict=True) if len(ends) < 2 or ends[0] not in label]
    if wrong or not lines:
        raise InputError(
            expected=f"paths in {paths.name} such as {next(iter(label))}/picture.JPEG",
            got=repr(wrong[0]) if lines else "no lines",
            remedy="Begin every line with the name of a class folder.",
        )
    return [(ends[0], ends[1]) for ends in listed]


def is_robustbench_list(paths: Path) -> bool:
    """Return whether a text file is RobustBench's list of 5,000 ImageNet pictures, by its SHA-256."""
    return hashlib.sha256(read_plain(paths)).hexdigest() == LIST_DIGEST
