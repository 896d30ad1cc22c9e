"""Files made to harm: every reader refuses them with an error of the package, and before they take memory."""

import codecs
import gzip
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brinell import InputError
from brinell.data import array_formats, load
from brinell.data.local_files import read_file
from brinell.data.matlab import read_mat

# Bytes that a bomb makes of a few, and those a reader may take for refusing it.
BOMB, ROOM = 64 << 20, 8 << 20


@contextmanager
def refused_in_little_room(told: str = "readable file") -> Iterator[None]:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=told):
            yield
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def npy(shape: str, kind: str = "|u1", damage: bytes = b"") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode() + damage + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(3072)


@pytest.mark.parametrize("shape", ["(10000000000,32,32,3)", "(9" + 30 * "9" + ",32,32,3)", "(-5,32,32,3)", "(1,32,32"])
def test_sizes_that_cannot_be(shape: str, tmp_path: Path) -> None:
    (tmp_path / "fog.npy").write_bytes(npy(shape))
    with refused_in_little_room():
        array_formats.images(tmp_path / "fog.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as packed:
        packed.writestr("x.npy", npy(shape))
        packed.writestr("y.npy", npy("(3,)", "<i8"))
    with pytest.raises(InputError, match="readable file"):
        read_file(tmp_path / "a.npz")


def test_damage_inside_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((4, 8), np.float32), y=np.arange(4))
    whole, r = path.read_bytes(), np.random.default_rng(1)
    for _ in range(100):
        blob = bytearray(whole)
        for at in r.integers(0, len(blob), 3):
            blob[at] = int(r.integers(0, 256))
        path.write_bytes(blob)
        try:
            read_file(path)
        except InputError:
            continue


class Called:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def doubled(times: int) -> Any:
    """Text that is twice as long after each of several encodings."""
    return Called(codecs.encode, (b"a" * 1000 if not times else doubled(times - 1), "hex"))


def nested() -> Any:
    """Lists of the same lists of the same lists: small in a file, millions of numbers as an array."""
    inner: Any = [0] * 8
    for _ in range(7):
        inner = [inner] * 8
    return inner


GOOD = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    "stored",
    [
        {b"data": doubled(16), b"labels": [0, 1]},
        {b"data": nested(), b"labels": [0, 1]},
        {b"data": Called(np.ndarray, ((BOMB,), "O")), b"labels": [0, 1]},
        {b"data": np.full((2, 3072), 300), b"labels": [0, 1]},
        {b"data": GOOD, b"labels": [0]},
        {b"data": GOOD, b"labels": [0, 1.5]},
        {b"data": GOOD, b"labels": nested()[:2]},
    ],
    ids=["codec", "lists", "any size", "not bytes", "too few labels", "not whole", "no numbers"],
)
def test_pickles_that_ask_for_much(stored: Any, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(stored, protocol=2))
    with refused_in_little_room():
        load("cifar10", root=tmp_path)


def test_a_packed_file_larger_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 1)) + struct.pack(">I", 5) + bytes(BOMB)))
    with refused_in_little_room("more than the 5 bytes"):
        array_formats.idx(path, 1)


@pytest.mark.parametrize("announced", [16, BOMB])
def test_a_matlab_file_of_nothing(announced: int, tmp_path: Path) -> None:
    """Announced at its true size it may be unpacked, but its empty elements are not collected by the million."""
    packed = zlib.compress(struct.pack("<2I", 14, announced) + bytes(BOMB))
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(bytes(124) + struct.pack("<H", 0x0100) + b"IM" + struct.pack("<2I", 15, len(packed)) + packed)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="readable file"):
            read_mat(path, "X", "y")
        assert tracemalloc.get_traced_memory()[1] < (ROOM if announced < BOMB else 3 * BOMB)
    finally:
        tracemalloc.stop()


def test_the_other_order_of_bytes(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((4, 3, 8, 8)).astype(">f4"), np.arange(4, dtype=">i8")
    np.savez(tmp_path / "a.npz", x=x, y=y)
    found = load(tmp_path / "a.npz")
    assert torch.equal(found.x, torch.from_numpy(x.astype("<f4"))) and found.y.tolist() == [0, 1, 2, 3]
