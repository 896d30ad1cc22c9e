"""The samples of an evaluation: id, input, label. A Dataset or DataLoader is read chunk by chunk."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, Subset

from brinell.core.threat import HI, LO
from brinell.errors import InputError, first_line

# Values outside the box by no more than this are rounding errors and are clipped.
SLACK = 1e-5
# Samples read at a time from a Dataset.
READ = 256


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
        return torch.tensor([row for row, i in enumerate(self.ids.tolist()) if i in ids], dtype=torch.long)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
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
    return x.clamp(LO, HI)


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
    return y.long()


def _ids(values: Any, n: int) -> Tensor:
    if values is None:
        return torch.arange(n)
    ids = _tensor(values, "ids").detach().cpu()
    integers = not ids.is_floating_point() and ids.dtype != torch.bool
    if not integers or ids.shape != (n,) or len(ids.unique()) != n:
        raise InputError(
            expected=f"{n} distinct integer ids",
            got=f"{str(ids.dtype).removeprefix('torch.')}, shape {tuple(ids.shape)}, {len(ids.unique())} distinct",
            remedy="Give every sample an id of its own, e.g. its index in the data set: the id decides its noise.",
        )
    return ids.long()


class Problem:
    """Samples with stable ids: tensors (x, y), a Dataset of (x, y) pairs with a length, or an unshuffled DataLoader.

    The outcome of a sample depends on its id and the seed, not on its position: samples of `problem[100:200]` have the
    same outcomes as in the whole problem.

    >>> problem = Problem(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), ids=[7, 3, 9, 1])
    >>> len(problem), problem[1:3].ids.tolist()
    (4, [3, 9])
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

    def __getitem__(self, part: slice) -> "Problem":
        if not isinstance(part, slice):
            raise InputError(expected="a slice", got=repr(part), remedy="Write problem[3:4] for one sample.")
        index = range(*part.indices(len(self)))
        if not self.streamed:
            rows = torch.tensor(index, dtype=torch.long)
            return Problem(self.x[rows], self.y[rows], self.ids[rows], name=self.name)
        # Ids stay a range where possible: a list would grow with the data.
        ids = index if self._given_ids is None else self._given_ids
        if self._given_ids is not None:
            ids = ids[part] if isinstance(ids, range) else ids[torch.tensor(index)]
        return Problem(Subset(self._dataset, index), ids=ids, name=self.name)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield the samples in order, `size` at a time (the last chunk may be smaller), with checked values."""
        if not self.streamed:
            for i in range(0, len(self), size):
                part = slice(i, i + size)
                yield Chunk(self.ids[part], self.x[part], self.y[part], i)
            return
        pending: list[tuple[Tensor, Tensor]] = []
        offset = 0
        for batch in self._read():
            pending.append(batch)
            while sum(len(y) for _, y in pending) >= size:
                x, y = (torch.cat(part) for part in zip(*pending, strict=True))
                yield self._chunk(x[:size], y[:size], offset)
                offset, pending = offset + size, [(x[size:], y[size:])]
        if sum(len(y) for _, y in pending):
            x, y = (torch.cat(part) for part in zip(*pending, strict=True))
            yield self._chunk(x, y, offset)

    def _chunk(self, x: Tensor, y: Tensor, offset: int) -> Chunk:
        rows = range(offset, offset + len(y))
        ids = rows if self._given_ids is None else self._given_ids[offset : rows.stop]
        return Chunk(torch.tensor(ids) if isinstance(ids, range) else ids, x, y, offset)

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = self._source
        batches = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=READ)
        for batch in batches:
            if not isinstance(batch, list | tuple) or len(batch) < 2:
                got, remedy = type(batch).__name__, "Return a pair (x, y) from the __getitem__ of the Dataset."
                raise InputError(expected="batches of (inputs, labels)", got=got, remedy=remedy)
            x = _inputs(batch[0])
            yield x, _labels(batch[1], len(x))

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


def sample_hashes(x: Tensor) -> list[str]:
    """Return the SHA-256 of every sample's float32 bytes."""
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest() for row in x.cpu().numpy()]
