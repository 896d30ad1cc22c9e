"""Select, merge, copy and compare rows of tensors and of dataclasses of row tensors."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

S = TypeVar("S")


def rows(v: Tensor, like: Tensor) -> Tensor:
    """Reshape `v` from (b,) to (b, 1, …, 1), so that it broadcasts over `like`."""
    return v.view(-1, *[1] * (like.ndim - 1))


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return rows of `a` where the mask is true, rows of `b` elsewhere.

    >>> where(torch.tensor([True, False]), torch.ones(2, 2), torch.zeros(2, 2)).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    if may_branch(mask) and a.shape == b.shape and a.dtype == b.dtype:
        # Often all rows or none are selected, and copying takes as long as a step's arithmetic.
        chosen = mask.numpy()
        count = int(np.count_nonzero(chosen))
        if count in (0, len(chosen)):
            return a if count else b
        if a.dtype == torch.float32 and not (a.requires_grad or b.requires_grad):
            # NumPy copies whole rows, in a third of the time.
            merged = b.numpy().copy(order="K")
            merged[chosen] = a.numpy()[chosen]
            return torch.from_numpy(merged)
    return torch.where(rows(mask, a), a, b)


def may_branch(v: Tensor) -> bool:
    """Return whether code may branch on tensor values to save work: only on a CPU and uncompiled."""
    return v.device.type == "cpu" and not torch.compiler.is_compiling()


def number_where(mask: Tensor, a: float, b: float) -> Tensor:
    """Return `a` where the mask is true and `b` elsewhere, in float32 (torch.where uses the default dtype).

    >>> number_where(torch.tensor([True, False]), 1.0, -1.0).tolist()
    [1.0, -1.0]
    """
    return torch.full_like(mask, b, dtype=torch.float32).masked_fill(mask, a)


def _each(function: Callable[..., Any], first: S, *others: S) -> S:
    """Apply a function to every tensor field of dataclasses, also of nested dataclasses; None stays None."""
    values = {f.name: _apply(function, [getattr(s, f.name) for s in (first, *others)]) for f in fields(first)}  # type: ignore[arg-type]
    return type(first)(**values)


def _apply(function: Callable[..., Any], values: list[Any]) -> Any:
    if values[0] is None:
        return None
    return function(*values) if isinstance(values[0], Tensor) else _each(function, *values)


def take(state: S, index: Tensor) -> S:
    """Return the dataclass with only the rows at `index` of every tensor."""
    return _each(lambda v: v[index], state)


def where_rows(mask: Tensor, a: S, b: S) -> S:
    """Apply `where` to every field of two dataclasses of row tensors."""
    return _each(lambda v, w: where(mask, v, w), a, b)


def put(state: S, index: Tensor, new: S) -> S:
    """Return a copy of `state` in which the rows of `new` replace the rows at `index`."""
    return _each(lambda v, n: v.index_copy(0, index, n), state, new)


def clone(state: S) -> S:
    """Return the dataclass with every tensor copied."""
    return _each(lambda v: v.clone(), state)


def overwrite(state: S, new: S) -> None:
    """Write the values of `new` into the memory of `state`, which must have the same shapes and dtypes.

    A field of `new` may share memory with another field of `state`: it is copied before that field is overwritten.
    """
    memory: set[int] = set()

    def note(v: Tensor) -> Tensor:
        memory.add(v.untyped_storage().data_ptr())
        return v

    _each(note, state)
    # Fields of one dtype are copied together: launching a kernel per field takes longer than most copies.
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def pair(v: Tensor, n: Tensor) -> Tensor:
        assert v.shape == n.shape and v.dtype == n.dtype, f"{tuple(n.shape)} {n.dtype} for {tuple(v.shape)} {v.dtype}"
        if n is not v:
            olds, news = by_dtype.setdefault(v.dtype, ([], []))
            olds.append(v)
            news.append(n.clone() if n.untyped_storage().data_ptr() in memory else n)
        return v

    _each(pair, state, new)
    for olds, news in by_dtype.values():
        torch._foreach_copy_(olds, news)


def overwrite_rows(state: S, index: Tensor, new: S) -> None:
    """Overwrite the rows of `state` at `index` with the rows of `new`, in the same memory."""
    _each(lambda v, n: v.index_copy_(0, index, n), state, new)


def same(a: S, b: S) -> bool:
    """Return whether all values of two dataclasses of row tensors are equal; NaN equals NaN."""
    equal: list[Tensor] = []

    def compare(v: Tensor, w: Tensor) -> Tensor:
        equal.append(((v == w) | ((v != v) & (w != w))).all())
        return v

    _each(compare, a, b)
    return bool(torch.stack(equal).all())


def flat(x: Tensor) -> Tensor:
    """Reshape x to (b, n): one flat row per sample."""
    return x.reshape(x.shape[0], -1)


def concat(states: "list[S]") -> S:
    """Concatenate the rows of dataclasses of row tensors, field by field."""
    return states[0] if len(states) == 1 else _each(lambda *v: torch.cat(v), *states)


def head(state: S, n: int) -> S:
    """Return the dataclass with only the first n rows of every tensor."""
    return _each(lambda v: v[:n], state)


def average(states: "list[S]") -> S:
    """Return the mean of dataclasses of row tensors, field by field and row by row."""
    return _each(lambda *v: torch.stack(v).mean(0), *states)


def sorted_rows(v: Tensor) -> Tensor:
    """Return every row of v, (b, n), in ascending order. On a CPU NumPy sorts many times faster than torch."""
    return torch.from_numpy(np.sort(v.numpy(), axis=1)) if may_branch(v) else v.sort(dim=1).values


# Elements summed by one matrix product. torch's cumulative sum on a GPU adds in an order that varies between runs.
_SPAN = 64


def running_sum(v: Tensor) -> Tensor:
    """Return cumulative sums along each row, (b, n), bit-identical in every run on one device.

    >>> running_sum(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0, 6.0]]
    """
    return v.cumsum(1) if v.device.type == "cpu" else span_sums(v)


def span_sums(v: Tensor) -> Tensor:
    """Return cumulative sums along each row: a matrix product sums within spans of columns, then spans are added."""
    b, n = v.shape
    if n <= 1:
        return v
    padded = torch.nn.functional.pad(v, (0, -n % _SPAN)).view(b, -1, _SPAN)
    within = padded @ torch.ones(_SPAN, _SPAN, dtype=v.dtype, device=v.device).triu()
    totals = within[:, :, -1]
    before = span_sums(totals) - totals if totals.shape[1] > 1 else torch.zeros_like(totals)
    return (within + before[:, :, None]).view(b, -1)[:, :n]
