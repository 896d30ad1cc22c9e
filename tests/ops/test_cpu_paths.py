"""On a CPU some functions take a shorter way: it gives the bits of the way that accelerators take."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import brinell
from brinell.attacks import APGD, FAB, Square
from brinell.models.demo import demo_net
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.ops.norms.water_filling import soft_threshold
from brinell.ops.rowwise import sorted_rows, where


@pytest.fixture
def elsewhere(monkeypatch):
    """A function that calls another one as if this were no CPU."""

    def call(function):
        with monkeypatch.context() as m:
            m.setattr(torch.compiler, "is_compiling", lambda: True)
            return function()

    return call


KEY = rng.keys(3, torch.arange(-20, 20))
DRAWS = {
    "fold by a number": lambda: rng.fold(KEY, -7),
    "fold by keys": lambda: rng.fold(KEY, KEY * 2**40),
    "children": lambda: rng.children(KEY, 5),
    "bits": lambda: rng.bits(KEY, 33),
    "uniform": lambda: rng.uniform(KEY, (2, 9)),
    "normal": lambda: rng.normal(KEY, (50,)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_noise(elsewhere, draw):
    assert torch.equal(draw(), elsewhere(draw))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("chosen", [[False] * 4, [True] * 4, [True, False, False, True]])
def test_choice_of_rows(elsewhere, chosen, layout):
    a, b = (v.contiguous(memory_format=layout) for v in rng.normal(rng.keys(0, torch.arange(8)), (3, 5, 5)).split(4))
    a[0, 0, 0, 0] = torch.nan
    mask = torch.tensor(chosen)
    got = where(mask, a, b)
    assert torch.equal(got.nan_to_num(99.0), elsewhere(lambda: where(mask, a, b)).nan_to_num(99.0))
    assert got.stride() == a.stride()


def test_sorted_rows(elsewhere):
    v = rng.normal(KEY, (200,)).round(decimals=1)
    assert torch.equal(sorted_rows(v), elsewhere(lambda: sorted_rows(v)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12), st.integers(0, 120))
@settings(deadline=None)
def test_soft_threshold_solves_its_equation(columns, share):
    """With equal terms, terms that may not move, and sums that need no threshold."""
    v = torch.tensor([[a / 4 for a, _ in columns]] * 2, dtype=torch.float64)
    allowed = torch.minimum(v, torch.tensor([[b / 4 for _, b in columns]], dtype=torch.float64))
    whole = allowed.sum(1)
    cut = soft_threshold(v, allowed, wanted := whole * share / 100)
    # A row that needs no threshold beside one that does.
    assert soft_threshold(v, allowed, torch.stack([wanted[0], 2 * whole[1]])).tolist() == [float(cut[0]), 0.0]
    kept = torch.minimum((v - cut[:, None]).clamp(min=0), allowed).sum(1)
    torch.testing.assert_close(kept, whole * min(share, 100) / 100, rtol=1e-12, atol=1e-12)
    assert share < 100 or not cut.any()


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("norm", NORMS.values(), ids=lambda norm: norm.name)
def test_projection(elsewhere, norm, spread):
    """Up to rounding of the last bit, which only L2 needs."""
    x0 = rng.uniform(KEY, (3, 8, 8)).round(decimals=1)
    d, eps = spread * rng.normal(rng.fold(KEY, 1), (3, 8, 8)), rng.uniform(KEY, (1,))[:, 0] * 9
    here = norm.project(d, eps, -x0, 1 - x0)
    there = elsewhere(lambda: norm.project(d, eps, -x0, 1 - x0))
    if norm.name == "L2":
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-7)
    else:
        assert torch.equal(here, there)


@pytest.mark.parametrize(
    "attack", [Square(steps=60), APGD(steps=12), FAB(steps=4, targeted=True)], ids=lambda a: a.name
)
def test_attacks(elsewhere, attack):
    """Points that change nothing are not measured: the rows are those of an engine that measures every point."""
    data = brinell.data.load("demo", 12)

    def rows():
        table = brinell.attack(demo_net(), data, brinell.Linf(0.1), attack)
        return table.drop_columns(["seconds"])

    assert rows().equals(elsewhere(rows))
