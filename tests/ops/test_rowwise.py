"""Choosing and moving rows of dataclasses, against plain indexing."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import TypeCheckError

from brinell.ops import rng
from brinell.ops.norms.l2 import L2Norm
from brinell.ops.rowwise import concat, flat, head, put, rows, running_sum, span_sums, take, where, where_rows


@dataclass(frozen=True)
class Inner:
    k: torch.Tensor


@dataclass(frozen=True)
class Outer:
    x: torch.Tensor
    t: torch.Tensor
    inner: Inner
    none: torch.Tensor | None = None


def state(n: int, offset: int = 0) -> Outer:
    base = torch.arange(offset, offset + n)
    return Outer(base.view(-1, 1, 1).float().expand(n, 2, 3).clone(), base, Inner(base * 10))


def ids(s: Outer) -> list[int]:
    """The rows' numbers, after making sure that all fields agree about them."""
    assert s.none is None
    assert torch.equal(s.inner.k, s.t * 10)
    assert torch.equal(s.x, s.t.float().view(-1, 1, 1).expand(len(s.t), 2, 3))
    return s.t.tolist()


def test_take():
    assert ids(take(state(5), torch.tensor([4, 0, 0]))) == [4, 0, 0]
    assert ids(take(state(5), torch.tensor([True, False, True, False, False]))) == [0, 2]


def test_put_copies():
    old = state(5)
    assert ids(put(old, torch.tensor([3, 1]), state(2, offset=7))) == [0, 8, 2, 7, 4]
    assert ids(old) == [0, 1, 2, 3, 4]


def test_where():
    mask = torch.tensor([True, False, True])
    assert where(mask, torch.ones(3, 2), torch.zeros(3, 2)).tolist() == [[1, 1], [0, 0], [1, 1]]


def test_where_rows():
    """Every field, nested ones too; both sides stay as they were."""
    a, b = state(4), state(4, offset=10)
    assert ids(where_rows(torch.tensor([True, False, False, True]), a, b)) == [0, 11, 12, 3]
    assert ids(a) == [0, 1, 2, 3] and ids(b) == [10, 11, 12, 13]


def test_a_row_that_is_not_chosen_cannot_poison():
    nan = torch.full((2, 2), torch.nan)
    assert where(torch.tensor([False, False]), nan, torch.ones(2, 2)).tolist() == [[1, 1], [1, 1]]


def test_concat_and_head():
    assert ids(concat([state(2), state(3, offset=2)])) == [0, 1, 2, 3, 4]
    one = state(2)
    assert concat([one]) is one
    assert ids(head(state(5), 2)) == [0, 1]


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4, 5)])
def test_shapes(shape):
    like = torch.zeros(shape)
    assert rows(torch.arange(3), like).shape == (3, *[1] * (len(shape) - 1))
    assert flat(like).shape == (3, like[0].numel())


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 4096, 5000])
def test_span_sums_are_cumulative_sums(n):
    v = rng.normal(rng.keys(0, torch.arange(3)), (n,)).double()
    assert torch.allclose(span_sums(v), v.cumsum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
def test_running_sums_repeat_on_the_gpu():
    v = rng.normal(rng.keys(0, torch.arange(512, device="cuda")), (3072,)).double()
    first = running_sum(v)
    assert all(torch.equal(running_sum(v), first) for _ in range(20))


def test_shapes_are_checked_in_these_tests() -> None:
    """Hints in brinell.ops.types are replaced by types that look at kind and shape (tests/conftest.py)."""
    with pytest.raises(TypeCheckError):
        L2Norm().size(torch.zeros(2, 3, dtype=torch.int64))
