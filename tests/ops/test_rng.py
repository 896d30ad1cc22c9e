"""Keyed noise: an independent implementation, pinned values, and statistics of the stream along every direction."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from brinell.ops import rng

MASK = (1 << 64) - 1
MANY = torch.arange(2000)
# Chances of a false alarm are fixed once and for all by the keys: these tests are deterministic.
RARE = 1e-4


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fold(key: int, data: int) -> int:
    return mix((mix((key ^ 0x9E3779B97F4A7C15) & MASK) + data * 0x9E3779B97F4A7C15) & MASK)


def words(key: int, n: int) -> list[int]:
    return [mix((mix(key & MASK) + i * 0xD1B54A32D192ED03) & MASK) for i in range(1, n + 1)]


def unsigned(t: torch.Tensor) -> list[int]:
    return [v & MASK for v in t.flatten().tolist()]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_fold_and_bits_are_what_they_say_in_exact_integers(key, data):
    k = torch.tensor([key])
    assert unsigned(rng.fold(k, data)) == [fold(key, data)]
    assert unsigned(rng.fold(k, torch.tensor([data]))) == [fold(key, data)]
    assert unsigned(rng.bits(k, 3)) == words(key, 3)


@given(st.integers(-(2**70), 2**70), st.integers(-(2**63), 2**63 - 1))
def test_keys_fold_seed_then_id(seed, sample):
    assert unsigned(rng.keys(seed, torch.tensor([sample]))) == [fold(fold(0, seed), sample)]


def test_the_stream_never_changes():
    """Every stored Run depends on these numbers. If this fails, the change breaks every published outcome."""
    key = rng.keys(0, torch.tensor([0, 1, -1]))
    assert key.tolist() == PINNED_KEYS
    assert rng.fold(key, 7)[:2].tolist() == PINNED_FOLD
    assert rng.bits(key, 3)[:2].tolist() == PINNED_BITS
    assert [v.hex() for v in rng.uniform(key, (3,))[0].tolist()] == PINNED_UNIFORM
    assert rng.integers(key, 10, (8,))[0].tolist() == PINNED_INTEGERS
    assert rng.signs(key, (8,))[1].tolist() == PINNED_SIGNS
    assert rng.normal(key, (3,))[0].tolist() == pytest.approx(PINNED_NORMAL, rel=1e-5)
    assert rng.exponential(key, (3,))[0].tolist() == pytest.approx(PINNED_EXPONENTIAL, rel=1e-5)
    assert rng.digest("apgd-ce") == PINNED_DIGEST


PINNED_KEYS: list[int] = [1634092812660623600, 8795686254521260270, 8911689362480809960]
PINNED_FOLD: list[int] = [-8444071219001185916, -793285877601941781]
PINNED_BITS: list[list[int]] = [
    [-3952652306920205317, 2652730436386570245, 4050292875001907227],
    [-101683893610061777, 298607992143657292, 1731233742254938775],
]
PINNED_UNIFORM: list[str] = ["0x1.924ab60000000p-1", "0x1.2683200000000p-3", "0x1.c1ac380000000p-3"]
PINNED_INTEGERS: list[int] = [7, 1, 2, 8, 5, 8, 5, 6]
PINNED_SIGNS: list[float] = [-1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0]
PINNED_NORMAL: list[float] = [-0.7041032, -0.4205119, -2.4356363]
PINNED_EXPONENTIAL: list[float] = [1.5405009, 0.1552569, 0.2479061]
PINNED_DIGEST = 1351695172622133756


# ------------------------------------------------------------------------------------------------------- distributions


def ks(values: torch.Tensor, law: str = "uniform") -> float:
    return float(stats.kstest(values.flatten().double().numpy(), law).pvalue)


# Where consecutive numbers of a stream may come from: elements of a key, ids, seeds, fold levels.
STREAMS = {
    "elements": lambda n: rng.uniform(rng.keys(0, torch.arange(1)), (n,))[0],
    "ids": lambda n: rng.uniform(rng.keys(0, torch.arange(n)), (1,))[:, 0],
    "huge ids": lambda n: rng.uniform(rng.keys(0, torch.arange(n) - 2**62), (1,))[:, 0],
    "distant ids": lambda n: rng.uniform(rng.keys(0, torch.arange(n) << 40), (1,))[:, 0],
    # As `keys` does it, for many seeds and one id.
    "seeds": lambda n: rng.uniform(rng.fold(rng.fold(torch.zeros(n, dtype=torch.long), torch.arange(n)), 5), (1,))[
        :, 0
    ],
    "folds": lambda n: rng.uniform(rng.fold(rng.keys(0, torch.zeros(n, dtype=torch.long)), torch.arange(n)), (1,))[
        :, 0
    ],
    "last element": lambda n: rng.uniform(rng.keys(0, torch.arange(n)), (50,))[:, -1],
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_uniform_and_uncorrelated_along(stream):
    u = stream(20_000)
    assert ks(u) > RARE
    assert u.min() >= 0 and u.max() < 1
    counts = np.bincount((u * 64).long().numpy(), minlength=64)
    assert stats.chisquare(counts).pvalue > RARE
    v = (u - 0.5).double()
    for lag in (1, 2, 3, 7, 28, 784):
        # Correlations of n independent numbers have standard deviation 1/√n.
        r = float((v[lag:] * v[:-lag]).mean() / v.square().mean())
        assert abs(r) < 4.5 / len(v) ** 0.5, f"lag {lag}"


@pytest.mark.parametrize("stream", ["elements", "ids", "folds"])
def test_pairs_fill_the_square(stream):
    u = STREAMS[stream](40_000).view(-1, 2)
    cell = (u[:, 0] * 16).long() * 16 + (u[:, 1] * 16).long()
    assert stats.chisquare(np.bincount(cell.numpy(), minlength=256)).pvalue > RARE


def test_every_bit_is_fair_and_independent_of_its_neighbour():
    w = rng.bits(rng.keys(1, torch.arange(300)), 100).flatten()
    bit = torch.stack([(w >> i) & 1 for i in range(64)], 1).double()
    worst = 5 * 0.5 / len(w) ** 0.5
    assert (bit.mean(0) - 0.5).abs().max() < worst
    both = (bit[:, 1:] - 0.5) * (bit[:, :-1] - 0.5)
    assert both.mean(0).abs().max() < worst


def flips(change) -> torch.Tensor:
    """Share of the 64 output bits that flip with each of the 64 input bits, (64, 64)."""
    base = rng.bits(torch.arange(400) * 7919 + 13, 1)[:, 0]
    out = []
    for i in range(64):
        one = 1 << i if i < 63 else -(1 << 63)
        d = change(torch.arange(400) * 7919 + 13, one) ^ base
        out.append(torch.stack([(d >> j) & 1 for j in range(64)], 1).double().mean(0))
    return torch.stack(out)


def test_avalanche_of_the_key():
    share = flips(lambda key, one: rng.bits(key ^ one, 1)[:, 0])
    assert (share - 0.5).abs().max() < 6 * 0.5 / 400**0.5
    assert abs(float(share.mean()) - 0.5) < 5 * 0.5 / (400 * 4096) ** 0.5


def test_avalanche_of_the_folded_number():
    key = torch.arange(400) * 7919 + 13
    base = rng.fold(key, torch.arange(400))
    for i in range(62):
        d = rng.fold(key, torch.arange(400) ^ (1 << i)) ^ base
        share = torch.stack([(d >> j) & 1 for j in range(64)], 1).double().mean()
        assert abs(float(share) - 0.5) < 5 * 0.5 / (400 * 64) ** 0.5


def test_levels_and_orders_of_folding_are_independent():
    key = rng.keys(0, MANY)
    streams = [
        key, rng.fold(key, 0), rng.fold(key, 1), rng.fold(rng.fold(key, 0), 1), rng.fold(rng.fold(key, 1), 0),
        rng.fold(rng.fold(key, 1), 1), rng.keys(1, MANY), rng.keys(0, MANY + len(MANY)), rng.bits(key, 1)[:, 0],
    ]  # fmt: skip
    assert len(torch.cat(streams).unique()) == len(streams) * len(MANY)
    u = torch.stack([rng.uniform(s, (20,)).flatten() for s in streams])
    r = torch.corrcoef(u.double()) - torch.eye(len(streams))
    assert r.abs().max() < 5 / u.shape[1] ** 0.5


def test_seeds_do_not_shift_ids():
    """keys(seed, id) must not be a function of seed + id, or neighbours would share noise across seeds."""
    everything = torch.cat([rng.keys(s, torch.arange(-50, 50)) for s in range(-50, 50)])
    assert len(everything.unique()) == 100 * 100


# ------------------------------------------------------------------------------------------------------------- derived


def test_normal_and_exponential():
    key = rng.keys(3, MANY)
    z, e = rng.normal(key, (50,)), rng.exponential(key, (50,))
    assert z.isfinite().all() and e.isfinite().all() and (e >= 0).all()
    assert ks(z, "norm") > RARE and ks(e, "expon") > RARE
    v = z[:, 1:].double() * z[:, :-1].double()
    assert abs(float(v.mean())) < 5 / v.numel() ** 0.5


def test_signs():
    s = rng.signs(rng.keys(3, MANY), (5, 10))
    assert s.shape == (2000, 5, 10) and set(s.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(s.mean())) < 5 / s.numel() ** 0.5


@pytest.mark.parametrize("high", [1, 2, 3, 10, 1000, 2**31 - 1])
def test_integers_stay_below_their_bound_and_are_uniform(high):
    v = rng.integers(rng.keys(3, MANY), high, (10,))
    assert v.shape == (2000, 10) and v.min() >= 0 and v.max() < high
    if high <= 1000:
        assert len(v.unique()) == high
        assert high == 1 or stats.chisquare(np.bincount(v.flatten().numpy(), minlength=high)).pvalue > RARE
    else:
        assert ks(v.double() / high) > RARE


def test_integers_with_a_bound_per_row():
    high = torch.tensor([1, 2, 7, 100])
    v = rng.integers(rng.keys(3, torch.arange(4)), high, (3, 40))
    assert (v < high.view(-1, 1, 1)).all()
    assert torch.equal(v[2], rng.integers(rng.keys(3, torch.tensor([2])), 7, (3, 40))[0])
    assert rng.integers(rng.keys(3, torch.arange(4)), high).shape == (4,)


@pytest.mark.parametrize(
    "draw", [rng.uniform, rng.normal, rng.signs, rng.exponential, lambda k, s: rng.integers(k, 9, s)]
)
def test_a_row_depends_on_its_key_only(draw):
    key = rng.keys(0, torch.arange(40))
    whole = draw(key, (3, 5))
    order = torch.arange(40).flip(0).roll(7)
    assert torch.equal(draw(key[order], (3, 5)), whole[order])
    assert torch.equal(torch.cat([draw(k, (3, 5)) for k in key.split(1)]), whole)
    assert not torch.equal(draw(rng.fold(key, 1), (3, 5)), whole)


@pytest.mark.parametrize("draw", [rng.uniform, rng.signs])
def test_longer_draws_begin_like_shorter_ones(draw):
    """Elements are counted, so the first ones do not depend on how many follow."""
    key = rng.keys(0, torch.arange(3))
    assert torch.equal(draw(key, (5,)), draw(key, (50,))[:, :5])


@pytest.mark.parametrize("n", [3, 784])
@pytest.mark.parametrize("draw", [rng.normal, rng.exponential])
def test_the_last_bit_does_not_depend_on_the_place_in_the_batch(draw, n):
    """Vector units finish the end of a tensor with other code, whose logarithms round differently."""
    key = rng.keys(0, torch.arange(333))
    whole = draw(key, (n,))
    for m in (13, 100):
        assert torch.equal(torch.cat([draw(k, (n,)) for k in key.split(m)]), whole)
