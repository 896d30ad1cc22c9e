"""Read arrays x and y from a user's file, or from a folder in the published layout of CIFAR or MNIST."""

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from brinell.data.array_formats import DAMAGE
from brinell.data.catalogue import SETS
from brinell.data.layouts import Subset, present
from brinell.errors import InputError, one_of, reported_as
from brinell.untrusted import checked_safetensors, npz_arrays

SUFFIXES = (".npz", ".safetensors")
SPLITS = ("train", "test")


def read(source: str | os.PathLike[str], split: str = "train") -> dict[str, Any]:
    """Return the arrays x (bytes, or floats in [0, 1]) and y of a file (.npz, .safetensors) or of a data set's folder.

    The folder holds `data_batch_1` … `test_batch` (CIFAR-10), `train` and `test` (CIFAR-100), or idx files such as
    `train-images-idx3-ubyte.gz` (MNIST, Fashion-MNIST). `split` is "train" or "test" and applies to folders.
    """
    one_of("a split", split, SPLITS)
    path = Path(source)
    if not path.is_dir() or path.suffix in SUFFIXES:
        return read_file(path)
    layout = _layout(path, split)
    if layout is not None:
        return layout.read(path, Subset(split))._asdict()
    raise InputError(
        expected=f"a folder with the files of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST ({split} split), or with one "
        "folder of pictures per class",
        got=f"{path} with {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}",
        remedy="Unpack the archive as it is published, or save x and y with numpy.savez.",
    )


def _layout(path: Path, split: str) -> Any:
    """Return the layout (CIFAR-10, CIFAR-100 or MNIST) whose first file of the split is in the folder, or None."""
    layouts = [SETS[name].layout for name in ("cifar10", "cifar100", "mnist")]
    firsts = ((layout, present(path, layout.files(Subset(split))[0])) for layout in layouts)
    return next((layout for layout, file in firsts if file is not None and file.is_file()), None)


def published(path: Path) -> bool:
    """Return whether a folder has the published files of CIFAR or MNIST for the train or the test split."""
    return any(_layout(path, split) is not None for split in SPLITS)


def _arrays(path: Path) -> dict[str, Any]:
    return dict(load_file(checked_safetensors(path))) if path.suffix == ".safetensors" else npz_arrays(path)


def read_file(path: Path) -> dict[str, Any]:
    """Return all arrays of a .npz or .safetensors file by name; the file must contain x and y."""
    if not path.exists():
        raise InputError(
            expected="a file or a folder",
            got=f"{path}, which does not exist",
            remedy="Pass the path of an existing file or folder.",
        )
    if path.suffix not in SUFFIXES:
        raise InputError(
            expected="a .npz or .safetensors file",
            got=path.name,
            remedy="Save x, y and optionally ids with numpy.savez.",
        )
    damage, expected = (*DAMAGE, KeyError, SafetensorError), f"a readable file {path.name} of plain arrays"
    with reported_as(InputError, *damage, expected=expected, remedy="Save it again with numpy.savez(path, x=x, y=y)."):
        stored = _arrays(path)
    missing = [k for k in ("x", "y") if k not in stored]
    if missing:
        raise InputError(
            expected="arrays x (inputs) and y (labels)",
            got=f"{path.name} with {', '.join(sorted(stored)) or 'nothing'}",
            remedy="Save both arrays with numpy.savez(path, x=x, y=y).",
        )
    return stored
