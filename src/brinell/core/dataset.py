"""The samples of an evaluation: id, input, label. A Dataset or DataLoader is read chunk by chunk."""

import hashlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from brinell.core.samples import (
    BYTES,
    as_ids,
    as_inputs,
    as_labels,
    as_names,
    collate,
    file_names,
    is_bytes,
    is_pairs,
    pair_of,
    read_stream,
    require_shape,
)
from brinell.errors import BrinellError, InputError, MissingName, error_text

# Samples read at a time from a Dataset.
READ = 256
END = object()


@dataclass(frozen=True)
class Chunk:
    """A part of a problem, read into memory and checked, and the position of its first sample in the problem."""

    ids: Tensor
    x: Tensor
    y: Tensor
    offset: int = 0
    names: tuple[str, ...] | None = None
    """The names of the samples, such as file names; None if they have none."""

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ids: Collection[int]) -> Tensor:
        """Return the positions in the chunk of the samples with these ids."""
        rows = [row for row, i in enumerate(self.ids.tolist()) if i in ids]
        return torch.tensor(rows, dtype=torch.long, device="cpu")


class Problem:
    """Samples with stable ids: arrays (x, y), a Dataset, an unshuffled DataLoader, or a list or stream of pairs.

    Inputs are floats in [0, 1], bytes (divided by 255) or pictures of Pillow. A sample is a pair or a dict. A stream
    without a length (an IterableDataset, a generator) is read into memory once.
    `ids` are whole numbers or names, such as file names; the id of a name is a hash of it. `names` only say which
    samples these are. Both come back in the rows of a Run.
    The outcome of a sample depends on its id and the seed, not on its position: samples of `problem[100:200]` have the
    same outcomes as in the whole problem.

    >>> problem = Problem(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), ids=[7, 3, 9, 1])
    >>> len(problem), problem[1:3].ids.tolist(), problem
    (4, [3, 9], <Problem 4 samples of 3, 2 classes>)
    >>> x, y = problem
    """

    def __init__(self, x: Any, y: Any = None, ids: Any = None, *, name: str = "", names: Any = None) -> None:
        self.name = name
        self.notes: list[str] = []
        """What was done to the inputs, for the notes of a Run."""
        self.classes = _class_names(x)
        """The names of the classes in the order of their labels, if the data set has them, else None."""
        self._source: Any = None
        if y is None and _is_source(x):
            self._source, self._given_ids, self.names = x, ids, None
            self._check_source(names)
            return
        if y is None:
            x, y = self._without_labels(x)
        self._note_bytes(x)
        self.x = as_inputs(x)
        self.y = as_labels(y, len(self.x))
        self.ids, given = as_ids(ids, len(self.x))
        self.names = given or _names(names, len(self.x))
        if len(self.x) == 0:
            raise InputError(expected="at least one sample", got="none", remedy="Check the selection.")

    def __getattr__(self, name: str) -> Any:
        """Raise that samples which are read one by one have no arrays; the remedy says how to read them."""
        if name not in ("x", "y", "ids"):
            raise AttributeError(f"a Problem has no attribute {name!r}")
        raise MissingName(
            expected="a problem in memory, which has x, y and ids",
            got=f"{name} of samples that are read when they are needed",
            remedy="Read them: x, y = problem, or for chunk in problem.chunks(256), with chunk.x, chunk.y, chunk.ids.",
        )

    def _without_labels(self, x: Any) -> tuple[Any, Any]:
        """Return inputs and labels of a dict of arrays, or of a stream of samples, which is read into memory."""
        if isinstance(x, Mapping):
            return pair_of(x)
        if not _is_stream(x):
            raise InputError(
                expected="inputs and labels, a Dataset or a DataLoader",
                got=f"{type(x).__name__} and no labels",
                remedy="Pass the labels too: Problem(x, y).",
            )
        inputs, labels, bytes_ = read_stream(x)
        self.notes += [BYTES] if bytes_ else []
        return inputs, labels

    def _note_bytes(self, x: Any) -> None:
        if is_bytes(x) and BYTES not in self.notes:
            self.notes.append(BYTES)

    def _check_source(self, names: Any) -> None:
        source, ids = self._source, self._given_ids
        if isinstance(source, DataLoader):
            self._check_loader(source)
        elif not hasattr(source, "__len__"):
            got = f"{type(source).__name__} without __len__"
            remedy = "Add __len__ to the Dataset, or read its samples into tensors: Problem(x, y)."
            raise InputError(expected="a Dataset with a length", got=got, remedy=remedy)
        if ids is not None and not (isinstance(ids, range) and len(ids) == len(self)):
            self._given_ids, self.names = as_ids(ids, len(self))
        self.names = self.names or _names(file_names(self._dataset) if names is None else names, len(self))

    def _check_loader(self, loader: "DataLoader[Any]") -> None:
        batches: Any = loader.batch_sampler
        # The order is that of the loader's sampler, or of the sampler inside its batch sampler.
        order = loader.sampler if batches is None else getattr(batches, "sampler", batches)
        if not isinstance(order, SequentialSampler):
            raise InputError(
                expected="a DataLoader that reads in order",
                got=f"a DataLoader with a {type(order).__name__}",
                remedy="Build it with DataLoader(…, shuffle=False): a sample's id is its position.",
            )
        if loader.drop_last and len(loader.dataset) % (loader.batch_size or 1):  # type: ignore[arg-type]
            raise InputError(
                expected="a DataLoader that reads every sample",
                got="a DataLoader that drops the last incomplete batch",
                remedy="Build it with DataLoader(…, drop_last=False).",
            )

    @property
    def _dataset(self) -> Any:
        return self._source.dataset if isinstance(self._source, DataLoader) else self._source

    @property
    def streamed(self) -> bool:
        """Whether samples are read from a Dataset or DataLoader when they are needed, not held in memory."""
        return self._source is not None

    def __len__(self) -> int:
        return len(self._dataset) if self.streamed else len(self.x)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield all inputs, then all labels: `x, y = problem`."""
        chunks = list(self.chunks(READ))
        yield torch.cat([chunk.x for chunk in chunks])
        yield torch.cat([chunk.y for chunk in chunks])

    def __repr__(self) -> str:
        name = f"{self.name}, " if self.name else ""
        if self.streamed:
            known = "" if self.classes is None else f", {len(self.classes)} classes"
            return f"<Problem {name}{len(self):,} samples read from {type(self._source).__name__}{known}>"
        shape = " × ".join(map(str, self.x.shape[1:]))
        return f"<Problem {name}{len(self):,} samples of {shape}, {len(self.y.unique())} classes>"

    def __getitem__(self, part: slice) -> "Problem":
        if not isinstance(part, slice):
            raise InputError(expected="a slice", got=repr(part), remedy="Write problem[3:4] for one sample.")
        index = range(*part.indices(len(self)))
        if not self.streamed:
            rows = torch.tensor(index, dtype=torch.long, device="cpu")
            return self._like(Problem(self.x[rows], self.y[rows], self.ids[rows], name=self.name), index)
        # Ids stay a range where possible: a list would grow with the data.
        ids = index if self._given_ids is None else self._given_ids
        if self._given_ids is not None:
            ids = ids[part] if isinstance(ids, range) else ids[list(index)]
        return self._like(Problem(Subset(self._dataset, index), ids=ids, name=self.name), index)

    def _like(self, part: "Problem", index: range) -> "Problem":
        """Return the part with the notes of this problem and the names of its samples at the positions `index`."""
        part.notes, part.classes = list(self.notes), self.classes
        part.names = None if self.names is None else [self.names[i] for i in index]
        return part

    def _names_of(self, start: int, n: int) -> tuple[str, ...] | None:
        return None if self.names is None else tuple(self.names[start : start + n])

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield the samples in order, `size` at a time (the last chunk may be smaller), with checked values."""
        if not self.streamed:
            for i in range(0, len(self), size):
                part = slice(i, i + size)
                yield Chunk(self.ids[part], self.x[part], self.y[part], i, self._names_of(i, size))
            return
        # A chunk is filled in place and held once: no list of batches, and nothing of the chunk before it.
        offset, filled = 0, 0
        x, y = (torch.empty(0, dtype=kind, device="cpu") for kind in (torch.float32, torch.long))
        for inputs, labels in self._read():
            while len(labels):
                if not filled:
                    room = min(size, len(self) - offset) if offset < len(self) else size
                    x, y = inputs.new_empty(room, *inputs.shape[1:]), labels.new_empty(room)
                taken = min(len(y) - filled, len(labels))
                require_shape(tuple(inputs.shape[1:]), tuple(x.shape[1:]))
                x[filled : filled + taken], y[filled : filled + taken] = inputs[:taken], labels[:taken]
                inputs, labels, filled = inputs[taken:], labels[taken:], filled + taken
                if filled == len(y):
                    full, x = x, x[:0].clone()
                    yield self._chunk(full, y, offset)
                    offset, filled = offset + len(full), 0
                    del full
        if filled:
            yield self._chunk(x[:filled].clone(), y[:filled], offset)

    def _chunk(self, x: Tensor, y: Tensor, offset: int) -> Chunk:
        rows = range(offset, offset + len(y))
        ids = rows if self._given_ids is None else self._given_ids[offset : rows.stop]
        if isinstance(ids, range):
            ids = torch.tensor(ids, dtype=torch.long, device="cpu")
        return Chunk(ids, x, y, offset, self._names_of(offset, len(y)))

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = self._source
        loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=READ, collate_fn=collate)
        for inputs, labels in map(pair_of, self._batches(loader)):
            self._note_bytes(inputs)
            x = as_inputs(inputs)
            yield x, as_labels(labels, len(x))

    def _batches(self, loader: "DataLoader[Any]") -> Iterator[Any]:
        """Yield the batches of a loader; turn an exception of the user's code into an InputError that names a sample.

        What the user's code makes is on the CPU, whatever the default device is.
        """
        batches: Iterator[Any] | None = None
        done = 0
        while True:
            try:
                with torch.device("cpu"):
                    batches = iter(loader) if batches is None else batches
                    batch: Any = next(batches, END)
            except BrinellError:  # it says what is wrong
                raise
            except Exception as error:
                raise self._unreadable(error, done, loader.batch_size or 1) from error
            if batch is END:
                return
            yield batch
            done += len(pair_of(batch)[0])

    def _unreadable(self, error: Exception, done: int, size: int) -> InputError:
        position = next((i for i in range(done, min(done + size, len(self))) if not self._readable(i)), done)
        ids = self._given_ids
        if "PIL." in str(error):
            got, remedy = "pictures of Pillow", "Let the data set return tensors: use the transform ToTensor()."
            return InputError(expected="batches of tensors from the DataLoader", got=got, remedy=remedy)
        return InputError(
            expected="a data set that returns every sample",
            got=f"{error_text(error)}, at sample {position if ids is None else int(ids[position])}",
            remedy=f"Correct the data set: dataset[{position}] must return (x, y) every time.",
        )

    def _readable(self, position: int) -> bool:
        try:
            self._dataset[position]
        except Exception:  # whatever the user's code raises
            return False
        return True

    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""
        return tuple(next(self.chunks(1)).x.shape[1:])

    def fingerprint(self) -> str:
        """Return a hash of ids, inputs and labels; a streamed problem hashes only its length and its first samples."""
        h = hashlib.sha256()
        first = next(self.chunks(READ)) if self.streamed else Chunk(self.ids, self.x, self.y)
        for part in (first.ids, first.x, first.y):
            h.update(str(tuple(part.shape)).encode() + part.numpy().tobytes())
        h.update(str(len(self)).encode())
        return ("stream-" if self.streamed else "") + h.hexdigest()


def _names(values: Any, n: int) -> list[str] | None:
    """Return names of n samples; None without names. They say which samples these are, and change no outcome."""
    names = as_names(values)
    if (names is None) != (values is None) or (names is not None and len(names) != n):
        got = f"{len(values)} {'names' if names else 'values'}" if hasattr(values, "__len__") else repr(values)
        raise InputError(expected=f"{n} names, one per sample", got=got, remedy="Pass a list of texts as names.")
    return names


def _class_names(source: Any) -> tuple[str, ...] | None:
    """Return the names of the classes of a data set that has them, ours or torchvision's; else None."""
    names = getattr(getattr(source, "dataset", source), "classes", None)
    sound = isinstance(names, list | tuple) and bool(names) and all(isinstance(name, str) for name in names)
    return tuple(names) if names is not None and sound else None


def numbered(classes: Collection[str], most: int = 10) -> str:
    """Return names of classes with their labels, the last one after the first few.

    >>> numbered(["Tshirt", "bag"]), numbered("abcdef", 3)
    ('0 Tshirt, 1 bag', '0 a, 1 b, 2 c, …, 5 f')
    """
    texts = [f"{label} {name}" for label, name in enumerate(classes)]
    return ", ".join(texts if len(texts) <= most + 1 else [*texts[:most], "…", texts[-1]])


def _is_source(x: Any) -> bool:
    """Return whether samples can be read from x one by one: a Dataset or its like, a DataLoader, a list of pairs."""
    if isinstance(x, DataLoader | Dataset):
        return not _is_stream(x)
    if isinstance(x, list | tuple):
        return is_pairs(x)
    array_like = isinstance(x, str | bytes | Mapping) or hasattr(x, "dtype") or hasattr(x, "shape")
    return hasattr(x, "__len__") and hasattr(x, "__getitem__") and not array_like


def _is_stream(x: Any) -> bool:
    """Return whether x yields samples in order and cannot be asked for one: an IterableDataset, a generator."""
    data = x.dataset if isinstance(x, DataLoader) else x
    plain = isinstance(x, str | bytes | list | tuple | Mapping | DataLoader | Dataset) or hasattr(x, "dtype")
    return isinstance(data, IterableDataset) or (hasattr(x, "__iter__") and not plain)


def first_samples(problem: Problem, n: int | None) -> Problem:
    """Return the first n samples (None: all); warn if there are fewer.

    >>> len(first_samples(Problem(torch.rand(4, 3), torch.tensor([0, 1, 0, 1])), 2))
    2
    """
    if n is None:
        return problem
    warn_if_fewer(n, len(problem))
    return problem[:n]


def warn_if_fewer(n: int, available: int) -> None:
    """Warn that fewer samples are available than n, the number that the user asked for."""
    if n > available:
        warnings.warn(f"n = {n:,} is more than the data have: all {available:,} samples are used.", stacklevel=3)


def sample_hashes(x: Tensor) -> list[str]:
    """Return the SHA-256 of every sample's float32 bytes."""
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest() for row in x.cpu().numpy()]
