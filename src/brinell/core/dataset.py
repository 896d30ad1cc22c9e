"""The samples of an evaluation: id, input, label. A Dataset or DataLoader is read chunk by chunk."""

import hashlib
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, Subset

from brinell.core.threat import HI, LO
from brinell.errors import InputError, MissingExtra, error_text, first_line
from brinell.ops.defaults import with_gradients

# Values outside the box by no more than this are rounding errors and are clipped.
SLACK = 1e-5
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

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ids: Collection[int]) -> Tensor:
        """Return the positions in the chunk of the samples with these ids."""
        rows = [row for row, i in enumerate(self.ids.tolist()) if i in ids]
        return torch.tensor(rows, dtype=torch.long, device="cpu")


def _tensor(values: Any, what: str) -> Tensor:
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


def _inputs(values: Any) -> Tensor:
    x = _tensor(values, "inputs")
    if not x.is_floating_point():
        convert = "x.float()" if isinstance(values, Tensor) else 'np.asarray(x, dtype="float32")'
        raise InputError(
            expected="floating-point inputs in [0, 1]",
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
        raise InputError(
            expected=f"inputs in [{LO:g}, {HI:g}]",
            got=f"values from {float(x.min()):.3g} to {float(x.max()):.3g}",
            remedy="Pass un-normalised images in [0, 1] and put the normalisation inside the model: "
            "brinell.wrap(net, mean=…, std=…).",
        )
    return with_gradients(x.clamp(LO, HI))


def _labels(values: Any, n: int) -> Tensor:
    y = _tensor(values, "labels").detach().cpu()
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


def _ids(values: Any, n: int) -> Tensor:
    if values is None:
        return with_gradients(torch.arange(n, device="cpu"))
    ids = _tensor(values, "ids").detach().cpu()
    integers = not ids.is_floating_point() and ids.dtype != torch.bool
    if not integers or ids.shape != (n,) or len(ids.unique()) != n:
        raise InputError(
            expected=f"{n} distinct integer ids",
            got=f"{str(ids.dtype).removeprefix('torch.')}, shape {tuple(ids.shape)}, {len(ids.unique())} distinct",
            remedy="Give every sample an id of its own, e.g. its index in the data set: the id decides its noise.",
        )
    return with_gradients(ids.long())


def _require_shape(x: Tensor, first: Tensor) -> None:
    """Raise an InputError if the inputs have another shape than the first ones of their chunk."""
    if x.shape[1:] != first.shape[1:]:
        raise InputError(
            expected=f"samples of one shape, {tuple(first.shape[1:])}",
            got=f"a sample of shape {tuple(x.shape[1:])}",
            remedy="Resize or crop the images to one size.",
        )


class Problem:
    """Samples with stable ids: tensors (x, y), a Dataset of (x, y) pairs with a length, or an unshuffled DataLoader.

    The outcome of a sample depends on its id and the seed, not on its position: samples of `problem[100:200]` have the
    same outcomes as in the whole problem.

    >>> problem = Problem(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), ids=[7, 3, 9, 1])
    >>> len(problem), problem[1:3].ids.tolist(), problem
    (4, [3, 9], <Problem 4 samples of 3, 2 classes>)
    >>> x, y = problem
    """

    def __init__(self, x: Any, y: Any = None, ids: Any = None, *, name: str = "") -> None:
        self.name = name
        self._source: Any = None
        if y is None and isinstance(x, DataLoader | Dataset):
            self._source, self._given_ids = x, ids
            self._check_source()
            return
        if y is None:
            raise InputError(
                expected="inputs and labels, a Dataset or a DataLoader",
                got=f"{type(x).__name__} and no labels",
                remedy="Pass the labels too: Problem(x, y).",
            )
        self.x = _inputs(x)
        self.y = _labels(y, len(self.x))
        self.ids = _ids(ids, len(self.x))
        if len(self.x) == 0:
            raise InputError(expected="at least one sample", got="none", remedy="Check the selection.")

    def _check_source(self) -> None:
        source, ids = self._source, self._given_ids
        if isinstance(source, DataLoader):
            self._check_loader(source)
        elif not hasattr(source, "__len__"):
            got = f"{type(source).__name__} without __len__"
            remedy = "Add __len__ to the Dataset, or read its samples into tensors: Problem(x, y)."
            raise InputError(expected="a Dataset with a length", got=got, remedy=remedy)
        if ids is not None and not (isinstance(ids, range) and len(ids) == len(self)):
            self._given_ids = _ids(ids, len(self))

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
            return f"<Problem {name}{len(self):,} samples of a {type(self._source).__name__}>"
        shape = " × ".join(map(str, self.x.shape[1:]))
        return f"<Problem {name}{len(self):,} samples of {shape}, {len(self.y.unique())} classes>"

    def __getitem__(self, part: slice) -> "Problem":
        if not isinstance(part, slice):
            raise InputError(expected="a slice", got=repr(part), remedy="Write problem[3:4] for one sample.")
        index = range(*part.indices(len(self)))
        if not self.streamed:
            rows = torch.tensor(index, dtype=torch.long, device="cpu")
            return Problem(self.x[rows], self.y[rows], self.ids[rows], name=self.name)
        # Ids stay a range where possible: a list would grow with the data.
        ids = index if self._given_ids is None else self._given_ids
        if self._given_ids is not None:
            ids = ids[part] if isinstance(ids, range) else ids[list(index)]
        return Problem(Subset(self._dataset, index), ids=ids, name=self.name)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield the samples in order, `size` at a time (the last chunk may be smaller), with checked values."""
        if not self.streamed:
            for i in range(0, len(self), size):
                part = slice(i, i + size)
                yield Chunk(self.ids[part], self.x[part], self.y[part], i)
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
                _require_shape(inputs, x)
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
        return Chunk(ids, x, y, offset)

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = self._source
        loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=READ)
        for batch in self._batches(loader):
            if not isinstance(batch, list | tuple) or len(batch) < 2:
                got, remedy = type(batch).__name__, "Return a pair (x, y) from the __getitem__ of the Dataset."
                raise InputError(expected="batches of (inputs, labels)", got=got, remedy=remedy)
            x = _inputs(batch[0])
            yield x, _labels(batch[1], len(x))

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
            except MissingExtra:  # the same for every sample
                raise
            except Exception as error:
                raise self._unreadable(error, done, loader.batch_size or 1) from error
            if batch is END:
                return
            yield batch
            done += len(batch[0])

    def _unreadable(self, error: Exception, done: int, size: int) -> InputError:
        position = next((i for i in range(done, min(done + size, len(self))) if not self._readable(i)), done)
        ids = self._given_ids
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
