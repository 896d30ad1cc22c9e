"""Convert samples as people have them to tensors: arrays, pairs, dicts, pictures, names as ids, streams."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from brinell.core.threat import HI, LO
from brinell.errors import InputError, first_line
from brinell.ops.defaults import with_gradients

# Values outside the box by no more than this are rounding errors and are clipped.
SLACK = 1e-5
LEVELS = 255
# Inputs from 0 to more than this are levels of a picture, not features that leave the box.
LEAST_LEVEL = 8
BYTES = f"The inputs are bytes (uint8): they were divided by {LEVELS}."
# The keys of a sample that is a dict, in the order in which they are looked for.
INPUT_KEYS = ("image", "img", "images", "pixel_values", "x", "input", "inputs", "features")
LABEL_KEYS = ("label", "labels", "y", "target", "targets", "fine_label", "class")
# Modes of pictures with 8 bits per channel that mean the same in grey and in RGB.
GREY, COLOUR = ("1", "L"), ("RGB", "P", "RGBA", "LA", "CMYK", "YCbCr", "HSV")
# A stream without a length is read into memory; its inputs may take this many bytes.
LARGEST_STREAM = 1 << 33
# Ids made from names fit into every kind of number that programs use for whole numbers, also doubles.
ID_BITS = 53
LONGEST_NAME = 1000


def as_tensor(values: Any, what: str) -> Tensor:
    """Return numbers as a dense tensor on the CPU, or raise an InputError that names them `what`."""
    try:
        tensor = torch.as_tensor(values, device="cpu")
        if tensor.is_floating_point() and not hasattr(values, "dtype"):  # numbers, which the default dtype would round
            tensor = torch.as_tensor(values, dtype=torch.float32, device="cpu")
        return tensor if tensor.layout is torch.strided else tensor.to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            expected=f"{what} as a tensor or array",
            got=f"{type(values).__name__} ({first_line(error)})",
            remedy="Pass a tensor or array of numbers; replace class names by the indices 0, 1, …",
        ) from None


def is_bytes(values: Any) -> bool:
    """Return whether the inputs are bytes: a tensor or array of uint8."""
    return str(getattr(values, "dtype", "")).removeprefix("torch.") == "uint8"


def as_inputs(values: Any) -> Tensor:
    """Return inputs as float32 in [0, 1]; bytes are divided by 255."""
    x = as_tensor(values, "inputs")
    if x.dtype == torch.uint8:
        _require_levels(x)
        x = x.float() / LEVELS
    if not x.is_floating_point():
        convert = "x.float()" if isinstance(values, Tensor) else 'np.asarray(x, dtype="float32")'
        raise InputError(
            expected="floating-point inputs in [0, 1], or bytes (uint8)",
            got=f"dtype {str(x.dtype).removeprefix('torch.')}",
            remedy=f"Convert images with {convert} / 255.",
        )
    if x.ndim < 2:
        got = f"shape {tuple(x.shape)}"
        raise InputError(expected="a batch of inputs, shape (n, …)", got=got, remedy="Add a batch dimension: x[None].")
    x = x.detach().to("cpu", torch.float32).contiguous()
    if not bool(x.isfinite().all()):
        row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
        remedy = "Drop such samples: ok = x.flatten(1).isfinite().all(1), then Problem(x[ok], y[ok])."
        raise InputError(expected="finite inputs", got=f"NaN or inf in sample {row}", remedy=remedy)
    if len(x) and (float(x.min()) < LO - SLACK or float(x.max()) > HI + SLACK):
        low, high = float(x.min()), float(x.max())
        levels = low >= 0 and LEAST_LEVEL < high <= LEVELS
        raise InputError(
            expected=f"inputs in [{LO:g}, {HI:g}]",
            got=f"values from {low:.3g} to {high:.3g}",
            remedy=f"These look like levels from 0 to {LEVELS}: divide them by {LEVELS}, or pass bytes (uint8)."
            if levels
            else "Pass un-normalised images in [0, 1] and put the normalisation inside the model: "
            "brinell.wrap(net, mean=…, std=…).",
        )
    return with_gradients(x.clamp(LO, HI))


def _require_levels(x: Tensor) -> None:
    """Raise an InputError if bytes are only 0 and 1: then they are features, not the levels of a picture."""
    if len(x) > 1 and int(x.max()) == 1:
        raise InputError(
            expected=f"bytes from 0 to {LEVELS}, the levels of a picture",
            got="bytes that are all 0 or 1",
            remedy="Pass such features as floats: x.float() (numpy: x.astype('float32')).",
        )


def as_labels(values: Any, n: int) -> Tensor:
    """Return labels as n integers from 0 up."""
    y = as_tensor(values, "labels").detach().cpu()
    if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1 or len(y) != n:
        raise InputError(
            expected=f"{n} integer labels, shape ({n},)",
            got=f"dtype {str(y.dtype).removeprefix('torch.')}, shape {tuple(y.shape)}",
            remedy="Give one class index per sample (one-hot labels: y.argmax(1); float labels: y.long()).",
        )
    if n and int(y.min()) < 0:
        raise InputError(
            expected="labels of at least 0", got=f"label {int(y.min())}", remedy="Number the classes 0, 1, 2, …"
        )
    return with_gradients(y.long())


def id_of(name: str) -> int:
    """Return the id of a sample with this name: the first 53 bits of its SHA-256, so the same wherever it stands.

    >>> id_of("cat/0001.png")
    7632713850432886
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> (64 - ID_BITS)


def as_names(values: Any) -> list[str] | None:
    """Return names as a list of texts if the values are texts or paths; None if they are numbers or None."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "OSU":
            return None
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | range) or not len(values):
        return None
    if not all(isinstance(value, str | os.PathLike | bytes) for value in values):
        return None
    names = [os.fsdecode(value) for value in values]
    for name in names:
        # A Run stores names as UTF-8. Files whose names are in another encoding have characters that it cannot hold.
        if len(name) > LONGEST_NAME or any("\ud800" <= c <= "\udfff" for c in name):
            got = f"a name of {len(name):,} characters" if len(name) > LONGEST_NAME else ascii(name)
            expected = f"names in Unicode of at most {LONGEST_NAME:,} characters"
            raise InputError(expected=expected, got=got, remedy="Rename this sample, or pass numbers as ids.")
    return names


def as_ids(values: Any, n: int) -> tuple[Tensor, list[str] | None]:
    """Return n distinct ids as integers and, if they are names, the names; the positions if `values` is None."""
    if values is None:
        return with_gradients(torch.arange(n, device="cpu")), None
    names = as_names(values)
    remedy = "Give every sample an id of its own, e.g. its index in the data set: the id decides its noise."
    if names is not None:
        if len(names) != n or len(set(names)) != n:
            got = f"{len(names)} names, {len(set(names))} distinct"
            raise InputError(expected=f"{n} distinct ids", got=got, remedy=remedy)
        ids = torch.tensor([id_of(name) for name in names], dtype=torch.long, device="cpu")
    else:
        ids = as_tensor(values, "ids").detach().cpu()
    integers = not ids.is_floating_point() and ids.dtype != torch.bool
    if not integers or ids.shape != (n,) or len(ids.unique()) != n:
        got = f"{str(ids.dtype).removeprefix('torch.')}, shape {tuple(ids.shape)}, {len(ids.unique())} distinct"
        raise InputError(expected=f"{n} distinct integer ids or names", got=got, remedy=remedy)
    return with_gradients(ids.long()), names


def file_names(source: Any) -> list[str] | None:
    """Return the file names of a data set that has them, relative to its folder: ours, or torchvision's; else None."""
    files = getattr(source, "file_names", None)
    if files is None and isinstance(samples := getattr(source, "samples", None), list):
        pairs = all(isinstance(s, tuple) and s and isinstance(s[0], str) for s in samples)
        root = getattr(source, "root", None)
        files = [s[0] if root is None else os.path.relpath(s[0], root) for s in samples] if pairs else None
    return as_names(files) if isinstance(files, list | tuple) and len(files) == len(source) else None


def is_picture(value: Any) -> bool:
    """Return whether the value is a picture of Pillow, without importing Pillow."""
    return any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)


def as_point(value: Any) -> Any:
    """Return a picture of Pillow as bytes (channels, height, width); everything else unchanged."""
    if not is_picture(value):
        return value
    if value.mode not in (*GREY, *COLOUR):
        raise InputError(
            expected="pictures with 8 bits per channel",
            got=f"a picture of mode {value.mode}",
            remedy="Let the data set return tensors in [0, 1], e.g. with torchvision's transform ToTensor().",
        )
    pixels = np.array(value.convert("L" if value.mode in GREY else "RGB"))
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def pair_of(sample: Any) -> tuple[Any, Any]:
    """Return input and label of a sample or a batch: the first two entries, or those of a dict by their keys."""
    if isinstance(sample, Mapping):
        x, y = (next((k for k in known if k in sample), None) for known in (INPUT_KEYS, LABEL_KEYS))
        if x is None or y is None:
            raise InputError(
                expected=f"a dict with an input ({', '.join(INPUT_KEYS)}) and a label ({', '.join(LABEL_KEYS)})",
                got=f"the keys {', '.join(map(str, sample))}"[:200],
                remedy="Return a pair (x, y) from the __getitem__ of the Dataset, or rename the keys.",
            )
        return sample[x], sample[y]
    if not isinstance(sample, list | tuple) or len(sample) < 2:
        got, remedy = type(sample).__name__, "Return a pair (x, y) from the __getitem__ of the Dataset."
        raise InputError(expected="batches of (inputs, labels)", got=got, remedy=remedy)
    return sample[0], sample[1]


def is_pairs(values: Any) -> TypeGuard[Sequence[Any]]:
    """Return whether the values are a list of pairs (input, label), not a pair of inputs and labels.

    >>> is_pairs([(torch.zeros(3), 0), (torch.ones(3), 1)]), is_pairs([[[0.1, 0.2], [0.3, 0.4]], [0, 1]])
    (True, False)
    """
    return isinstance(values, list | tuple) and bool(values) and all(_is_pair(value) for value in values)


def _is_pair(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, list | tuple) or len(value) < 2:
        return False
    x, y = value[:2]
    scalar = isinstance(y, int | np.integer) or (hasattr(y, "ndim") and y.ndim == 0)
    return scalar and (is_picture(x) or np.ndim(x) > 0)


def collate(samples: list[Any]) -> Any:
    """Return a batch (inputs, labels) of samples that are pairs or dicts, with tensors, arrays or pictures."""
    pairs = [(as_point(x), y) for x, y in map(pair_of, samples)]
    shapes = {tuple(x.shape): None for x, _ in pairs if hasattr(x, "shape")}
    if len(shapes) > 1:
        first, other = list(shapes)[:2]
        require_shape(other, first)
    return default_collate(pairs)


def require_shape(shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    """Raise an InputError if a sample has another shape than the first one."""
    if shape != first:
        raise InputError(
            expected=f"samples of one shape, {first}",
            got=f"a sample of shape {shape}",
            remedy="Resize or crop the images to one size, with as many channels.",
        )


def read_stream(source: Iterable[Any]) -> tuple[Tensor, Tensor, bool]:
    """Read a stream of samples without a length into memory, once; return inputs, labels, and whether x are bytes.

    A DataLoader yields batches. Raise an InputError if the inputs take more than 8 GiB.
    """
    x: list[Tensor] = []
    y: list[Tensor] = []
    size, bytes_ = 0, False
    for inputs, labels in map(pair_of, _batches(source)):
        bytes_ |= is_bytes(inputs)
        x.append(as_inputs(inputs))
        y.append(as_labels(labels, len(x[-1])))
        require_shape(tuple(x[-1].shape[1:]), tuple(x[0].shape[1:]))
        size += 4 * math.prod(x[-1].shape)
        if size > LARGEST_STREAM:
            raise InputError(
                expected=f"a stream of samples that fits into {LARGEST_STREAM >> 30} GiB, since it is read into memory",
                got=f"more than {sum(map(len, x)):,} samples",
                remedy="Pass the first ones, list(itertools.islice(data, 1000)), or a Dataset with a length.",
            )
    if not x:
        raise InputError(expected="at least one sample", got="none", remedy="Check that the stream is not used up.")
    return torch.cat(x), torch.cat(y), bytes_


def _batches(source: Iterable[Any]) -> Iterator[Any]:
    with torch.device("cpu"):
        if isinstance(source, DataLoader):
            yield from source
        else:
            yield from (collate([sample]) for sample in source)
