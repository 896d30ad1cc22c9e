"""Keyed, stateless noise: a value depends on its key and its position only.

A key is one int64 per row. Integer arithmetic wraps modulo 2^64 on every device, so keys, integers and uniforms are
bit-identical on CPU and GPU, in any batch and in any order. Logarithms, cosines and powers are not: their last bit
depends on the device and even on the position in the tensor, since vector units process the end of a tensor by other
code. They are computed in float64 and rounded to float32; two devices then differ in about one value in 10⁹.
"""

import hashlib
import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from brinell.ops.device_cache import table
from brinell.ops.rowwise import may_branch
from brinell.ops.types import Keys, Points

if TYPE_CHECKING:
    Words: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]


def _signed(word: int) -> int:
    """Return the int64 with the same 64 bits as the unsigned `word`."""
    return word - (1 << 64) if word >> 63 else word


# Multipliers and shifts of the SplitMix64 finaliser (Steele, Lea & Flood 2014; constants: Stafford's variant 13).
_MUL_1, _MUL_2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
# Odd increments that separate the two uses of a key: deriving keys, and counting elements.
_DERIVE, _COUNT = _signed(0x9E3779B97F4A7C15), _signed(0xD1B54A32D192ED03)
_MANTISSA = 24


def _shift_right(z: Tensor, n: int) -> Tensor:
    """Return the int64 values z shifted right by n bits and filled with zeros (torch's shift copies the sign bit)."""
    return (z >> n).bitwise_and_((1 << (64 - n)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = _shift_right(z, 30).bitwise_xor_(z).mul_(_MUL_1)
    z = _shift_right(z, 27).bitwise_xor_(z).mul_(_MUL_2)
    return _shift_right(z, 31).bitwise_xor_(z)


# The shifts and multipliers of `_mix` for NumPy, whose shift fills with zeros.
_ROUNDS = tuple((np.uint64(n), np.uint64(m & (1 << 64) - 1)) for n, m in ((30, _MUL_1), (27, _MUL_2)))
_LAST = np.uint64(31)


def _mix_words(z: "Words") -> "Words":
    for shift, factor in _ROUNDS:
        z = (z >> shift ^ z) * factor
    mixed: Words = z >> _LAST ^ z
    return mixed


def _mix_twice(z: Tensor, added: Tensor | int) -> Tensor:
    """Return mix(mix(z) + added). On a CPU NumPy computes the same bits in less than half the time."""
    if not may_branch(z):
        return _mix(_mix(z) + added)
    term = np.int64(added) if isinstance(added, int) else added.numpy()
    words = _mix_words(_mix_words(z.numpy().view(np.uint64)) + term.view(np.uint64))
    return torch.from_numpy(words.view(np.int64))


def digest(text: str) -> int:
    """Return a hash of the text as an integer, so that `fold` can derive keys from names."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 2


def fold(key: Keys, data: int | Keys) -> Keys:
    """Derive a new key from a key and an integer. Different integers give independent keys.

    >>> a = fold(torch.tensor([1, 2]), 7)
    >>> bool((a == fold(torch.tensor([1, 2]), 7)).all()), bool((a == fold(torch.tensor([1, 2]), 8)).any())
    (True, False)
    """
    # Mixing before and after the addition makes fold(fold(k, a), b) differ from fold(fold(k, b), a).
    step = _signed(data * _DERIVE % (1 << 64)) if isinstance(data, int) else data * _DERIVE
    return _mix_twice(key ^ _DERIVE, step)


@table
def _steps(n: int, device: torch.device) -> Tensor:
    """Return the numbers that `fold` adds to a key for the integers 0 … n − 1; cached for the reason in `_counter`."""
    return torch.arange(n, device=device) * _DERIVE


def children(key: Keys, n: int) -> Tensor:
    """Return the n keys fold(key, 0) … fold(key, n − 1) of each row, shape (b, n).

    >>> key = torch.tensor([1, 2])
    >>> bool((children(key, 3)[:, 2] == fold(key, 2)).all())
    True
    """
    return _mix_twice((key ^ _DERIVE)[:, None], _steps(n, key.device))


def keys(seed: int, ids: Keys) -> Keys:
    """Return one noise key per sample, derived from the seed and the sample's id."""
    return fold(fold(torch.zeros_like(ids), seed), ids)


@table
def _counter(n: int, device: torch.device) -> Tensor:
    """Return the numbers that `bits` adds to a key for its n words; cached: GPU compilers would multiply in 32 bits."""
    return torch.arange(1, n + 1, device=device) * _COUNT


def bits(key: Keys, n: int) -> Tensor:
    """Return n independent 64-bit words per key, as int64 of shape (b, n)."""
    return _mix_twice(key[:, None], _counter(n, key.device))


def uniform(key: Keys, shape: tuple[int, ...]) -> Points:
    """Draw numbers uniformly from [0, 1), with 24 random bits each: a tensor of shape (b, *shape).

    >>> uniform(keys(0, torch.arange(2)), (3,)).shape
    torch.Size([2, 3])
    """
    words = _shift_right(bits(key, math.prod(shape)), 64 - _MANTISSA)
    return (words.float() * 2.0**-_MANTISSA).view(-1, *shape)


def integers(key: Keys, high: int | Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw integers from 0 … `high` − 1, shape (b, *shape). `high` is one bound below 2^31, or one per row."""
    words = _shift_right(bits(key, math.prod(shape)), 64 - 31).view(-1, *shape)
    bound = high.view(-1, *[1] * len(shape)) if isinstance(high, Tensor) else high
    return (words * bound) >> 31


def signs(key: Keys, shape: tuple[int, ...]) -> Points:
    """Draw −1 or +1 with equal probability: a tensor of shape (b, *shape)."""
    return torch.where(bits(key, math.prod(shape)) < 0, -1.0, 1.0).float().view(-1, *shape)


def normal(key: Keys, shape: tuple[int, ...]) -> Points:
    """Draw from the standard normal distribution by Box-Muller: a tensor of shape (b, *shape)."""
    u, v = uniform(fold(key, 1), shape).double(), uniform(fold(key, 2), shape).double()
    # 1 − u lies in (0, 1], so the logarithm is finite.
    return ((-2 * (1 - u).log()).sqrt() * (2 * math.pi * v).cos()).float()


def exponential(key: Keys, shape: tuple[int, ...]) -> Points:
    """Draw from the standard exponential distribution: a tensor of shape (b, *shape)."""
    return -(1 - uniform(key, shape).double()).log().float()
