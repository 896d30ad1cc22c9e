"""Broadcasting, choosing and moving rows, for tensors and for dataclasses of row tensors."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def rows(v: Tensor, like: Tensor) -> Tensor:
    """Shape (b,) to (b, 1, …, 1), so that it broadcasts over `like`."""
    return v.view(-1, *[1] * (like.ndim - 1))


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Rows of `a` where the mask is true, of `b` elsewhere.

    >>> where(torch.tensor([True, False]), torch.ones(2, 2), torch.zeros(2, 2)).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    return torch.where(rows(mask, a), a, b)


def _each(function: Callable[..., Any], first: S, *others: S) -> S:
    """Apply to every field of dataclasses of row tensors; fields that are None stay None; nested dataclasses too."""
    parts = {f.name: _apply(function, [getattr(s, f.name) for s in (first, *others)]) for f in fields(first)}  # type: ignore[arg-type]
    return type(first)(**parts)


def _apply(function: Callable[..., Any], values: list[Any]) -> Any:
    if values[0] is None:
        return None
    return function(*values) if isinstance(values[0], Tensor) else _each(function, *values)


def take(state: S, index: Tensor) -> S:
    """The rows at `index`, of every field."""
    return _each(lambda v: v[index], state)


def where_rows(mask: Tensor, a: S, b: S) -> S:
    """`where` for every field of two dataclasses of row tensors."""
    return _each(lambda v, w: where(mask, v, w), a, b)


def put(state: S, index: Tensor, new: S) -> S:
    """A copy of the state whose rows at `index` are those of `new`."""
    return _each(lambda v, n: v.index_copy(0, index, n), state, new)


def clone(state: S) -> S:
    """The same numbers in memory of their own, each field apart."""
    return _each(lambda v: v.clone(), state)


def overwrite(state: S, new: S) -> None:
    """Write the numbers of `new` into the memory of `state`, whose shapes and kinds must be the same.

    A field of `new` may be another field of `state` as it was: it is read before that is written.
    """
    own: set[int] = set()

    def note(v: Tensor) -> Tensor:
        own.add(v.untyped_storage().data_ptr())
        return v

    _each(note, state)
    # Numbers of a kind are copied together: a device takes longer to begin with each field than to copy most of them.
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def pair(v: Tensor, n: Tensor) -> Tensor:
        assert v.shape == n.shape and v.dtype == n.dtype, f"{tuple(n.shape)} {n.dtype} for {tuple(v.shape)} {v.dtype}"
        if n is not v:
            olds, news = kinds.setdefault(v.dtype, ([], []))
            olds.append(v)
            news.append(n.clone() if n.untyped_storage().data_ptr() in own else n)
        return v

    _each(pair, state, new)
    for olds, news in kinds.values():
        torch._foreach_copy_(olds, news)


def overwrite_rows(state: S, index: Tensor, new: S) -> None:
    """Write the rows of `new` over those of `state` at `index`."""
    _each(lambda v, n: v.index_copy_(0, index, n), state, new)


def same(a: S, b: S) -> bool:
    """Whether all numbers of two dataclasses of row tensors are equal, NaN to NaN."""
    equal: list[Tensor] = []

    def compare(v: Tensor, w: Tensor) -> Tensor:
        equal.append(((v == w) | ((v != v) & (w != w))).all())
        return v

    _each(compare, a, b)
    return bool(torch.stack(equal).all())


def flat(x: Tensor) -> Tensor:
    """Shape (b, n): one flat row per sample."""
    return x.reshape(len(x), -1)


def concat(parts: "list[S]") -> S:
    """One dataclass of row tensors from several."""
    return parts[0] if len(parts) == 1 else _each(lambda *v: torch.cat(v), *parts)


def head(state: S, n: int) -> S:
    """The first n rows of every field."""
    return _each(lambda v: v[:n], state)


def average(parts: "list[S]") -> S:
    """The mean of several dataclasses of row tensors, field by field."""
    return _each(lambda *v: torch.stack(v).mean(0), *parts)


# Elements summed by one matrix product; torch's own running sum on a GPU adds in an order that changes from run to run.
_SPAN = 64


def running_sum(v: Tensor) -> Tensor:
    """Cumulative sums along each row, (b, n), the same from run to run on every device.

    >>> running_sum(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0, 6.0]]
    """
    return v.cumsum(1) if v.device.type == "cpu" else span_sums(v)


def span_sums(v: Tensor) -> Tensor:
    """Cumulative sums by products with a triangle of ones, span by span, then over the spans."""
    b, n = v.shape
    if n <= 1:
        return v
    padded = torch.nn.functional.pad(v, (0, -n % _SPAN)).view(b, -1, _SPAN)
    within = padded @ torch.ones(_SPAN, _SPAN, dtype=v.dtype, device=v.device).triu()
    totals = within[:, :, -1]
    before = span_sums(totals) - totals if totals.shape[1] > 1 else torch.zeros_like(totals)
    return (within + before[:, :, None]).view(b, -1)[:, :n]
