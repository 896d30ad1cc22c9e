"""The samples: id, point, label. Tensors, a Dataset or a DataLoader; never needs the whole data set in memory."""

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

# Values this close outside the box are rounding and are clipped; anything further is an error.
SLACK = 1e-5
READ = 256


@dataclass(frozen=True)
class Chunk:
    """Checked samples in memory, and the position of the first one in the whole problem."""

    ids: Tensor
    x: Tensor
    y: Tensor
    offset: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ids: Collection[int]) -> Tensor:
        """Return the rows of the samples with these ids."""
        return torch.tensor([row for row, i in enumerate(self.ids.tolist()) if i in ids], dtype=torch.long)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        found = torch.as_tensor(values)
        return found if found.layout is torch.strided else found.to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            expected=f"{what} as a tensor or array",
            got=f"{type(values).__name__} ({first_line(error)})",
            remedy="Call Problem(x, y) with numbers.",
        ) from None


def _points(x: Any) -> Tensor:
    given, x = x, _tensor(x, "inputs")
    if not x.is_floating_point():
        convert = "x.float()" if isinstance(given, Tensor) else 'np.asarray(x, dtype="float32")'
        raise InputError(
            expected="floating-point inputs in [0, 1]",
            got=f"dtype {str(x.dtype).removeprefix('torch.')}",
            remedy=f"Convert images with {convert} / 255.",
        )
    if x.ndim < 2:
        raise InputError(
            expected="a batch of inputs, shape (n, …)",
            got=f"shape {tuple(x.shape)}",
            remedy="Add a batch dimension: x[None].",
        )
    x = x.detach().to("cpu", torch.float32).contiguous()
    if not bool(x.isfinite().all()):
        row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
        raise InputError(expected="finite inputs", got=f"NaN or inf in sample {row}", remedy="Clean the data first.")
    if len(x) and (float(x.min()) < LO - SLACK or float(x.max()) > HI + SLACK):
        raise InputError(
            expected=f"inputs in [{LO:g}, {HI:g}]",
            got=f"values from {float(x.min()):.3g} to {float(x.max()):.3g}",
            remedy="Pass un-normalised images in [0, 1] and put the normalisation inside the model: "
            "brinell.wrap(net, mean=…, std=…).",
        )
    clipped: Tensor = x.clamp(LO, HI)
    return clipped


def _labels(y: Any, n: int) -> Tensor:
    y = _tensor(y, "labels").detach().cpu()
    if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1 or len(y) != n:
        raise InputError(
            expected=f"{n} integer labels, shape ({n},)",
            got=f"dtype {str(y.dtype).removeprefix('torch.')}, shape {tuple(y.shape)}",
            remedy="Give one class index per sample (one-hot labels: y.argmax(1); whole numbers in floats: y.long()).",
        )
    if n and int(y.min()) < 0:
        raise InputError(
            expected="labels of at least 0", got=f"label {int(y.min())}", remedy="Number the classes from 0."
        )
    whole: Tensor = y.long()
    return whole


def _ids(ids: Any, n: int, offset: int = 0) -> Tensor:
    if ids is None:
        return torch.arange(offset, offset + n)
    ids = _tensor(ids, "ids").detach().cpu()
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if not whole or ids.shape != (n,) or len(ids.unique()) != n:
        raise InputError(
            expected=f"{n} distinct integer ids",
            got=f"{str(ids.dtype).removeprefix('torch.')}, shape {tuple(ids.shape)}, {len(ids.unique())} distinct",
            remedy="A sample's id decides its noise: give every sample its own, e.g. its index in the data set.",
        )
    distinct: Tensor = ids.long()
    return distinct


class Problem:
    """Samples with stable ids: tensors `(x, y)`, a map-style Dataset of (x, y) pairs, or an unshuffled DataLoader.

    A sample's outcome depends on its id and the seed, not on its place, so `problem[100:200]` gives the same outcomes
    as the same samples inside the whole.

    >>> problem = Problem(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), ids=[7, 3, 9, 1])
    >>> len(problem), problem[1:3].ids.tolist()
    (4, [3, 9])
    """

    def __init__(self, x: Any, y: Any = None, ids: Any = None, *, name: str = "") -> None:
        self.name = name
        self._source: Any = None
        if y is None and isinstance(x, DataLoader | Dataset):
            self._source, self._given = x, ids
            self._check_source()
            return
        if y is None:
            raise InputError(
                expected="inputs and labels, a Dataset or a DataLoader",
                got=f"{type(x).__name__} and no labels",
                remedy="Call Problem(x, y).",
            )
        self.x = _points(x)
        self.y = _labels(y, len(self.x))
        self.ids = _ids(ids, len(self.x))
        if len(self.x) == 0:
            raise InputError(expected="at least one sample", got="none", remedy="Check the selection of the data.")

    def _check_source(self) -> None:
        source = self._source
        if isinstance(source, DataLoader):
            self._check_loader(source)
        if not isinstance(source, DataLoader) and not hasattr(source, "__len__"):
            raise InputError(
                expected="a Dataset with a length",
                got=type(source).__name__,
                remedy="Wrap an iterable in a DataLoader.",
            )
        if self._given is not None and not (isinstance(self._given, range) and len(self._given) == self._length()):
            self._given = _ids(self._given, self._length())

    def _check_loader(self, loader: "DataLoader[Any]") -> None:
        batches: Any = loader.batch_sampler
        # Without batches the loader's own sampler decides; with a sampler of batches, the one inside it.
        order = loader.sampler if batches is None else getattr(batches, "sampler", batches)
        if not isinstance(order, SequentialSampler):
            raise InputError(
                expected="a DataLoader that reads in order",
                got=f"one with a {type(order).__name__}",
                remedy="Pass shuffle=False: a sample's id is its position.",
            )
        if loader.drop_last and len(loader.dataset) % (loader.batch_size or 1):  # type: ignore[arg-type]
            raise InputError(
                expected="a DataLoader that reads every sample",
                got="one that drops the last ones",
                remedy="Pass drop_last=False.",
            )

    def _length(self) -> int:
        source: Any = self._source.dataset if isinstance(self._source, DataLoader) else self._source
        return len(source)

    @property
    def streamed(self) -> bool:
        """Whether samples are read as they are needed."""
        return self._source is not None

    def __len__(self) -> int:
        if not self.streamed:
            return len(self.x)
        return self._length()

    def __getitem__(self, part: slice) -> "Problem":
        if not isinstance(part, slice):
            raise InputError(expected="a slice", got=repr(part), remedy="Write problem[a:b].")
        index = range(*part.indices(len(self)))
        if not self.streamed:
            rows = torch.tensor(index, dtype=torch.long)
            return Problem(self.x[rows], self.y[rows], self.ids[rows], name=self.name)
        source = self._source.dataset if isinstance(self._source, DataLoader) else self._source
        # As ranges where possible: a list of the places would grow with the data.
        ids = self._places(part, index)
        return Problem(Subset(source, index), ids=ids, name=self.name)

    def _places(self, part: slice, index: range) -> Any:
        if self._given is None:
            return index
        return self._given[part] if isinstance(self._given, range) else self._given[torch.tensor(index)]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The samples in order, `size` at a time, checked."""
        if not self.streamed:
            for i in range(0, len(self), size):
                part = slice(i, i + size)
                yield Chunk(self.ids[part], self.x[part], self.y[part], i)
            return
        held: list[tuple[Tensor, Tensor]] = []
        offset = 0
        for x, y in self._read():
            held.append((x, y))
            while sum(len(b[1]) for b in held) >= size:
                xs, ys = torch.cat([b[0] for b in held]), torch.cat([b[1] for b in held])
                yield self._chunk(xs[:size], ys[:size], offset)
                offset, held = offset + size, [(xs[size:], ys[size:])]
        if held and sum(len(b[1]) for b in held):
            yield self._chunk(torch.cat([b[0] for b in held]), torch.cat([b[1] for b in held]), offset)

    def _chunk(self, x: Tensor, y: Tensor, offset: int) -> Chunk:
        ids = _ids(None, len(y), offset) if self._given is None else self._given[offset : offset + len(y)]
        return Chunk(torch.tensor(ids) if isinstance(ids, range) else ids, x, y, offset)

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = self._source
        batches = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=READ)
        for batch in batches:
            if not isinstance(batch, list | tuple) or len(batch) < 2:
                raise InputError(
                    expected="batches of (inputs, labels)",
                    got=type(batch).__name__,
                    remedy="Let the data set return (x, y).",
                )
            x = _points(batch[0])
            yield x, _labels(batch[1], len(x))

    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(next(self.chunks(1)).x.shape[1:])

    def fingerprint(self) -> str:
        """A hash of ids, inputs and labels; for a stream, of its length and its first samples."""
        h = hashlib.sha256()
        first = next(self.chunks(READ)) if self.streamed else Chunk(self.ids, self.x, self.y)
        for part in (first.ids, first.x, first.y):
            h.update(str(tuple(part.shape)).encode() + part.numpy().tobytes())
        h.update(str(len(self)).encode())
        return ("stream-" if self.streamed else "") + h.hexdigest()


def sample_hashes(x: Tensor) -> list[str]:
    """sha256 of every sample's float32 bytes."""
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest() for row in x.cpu().numpy()]
