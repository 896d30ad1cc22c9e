"""Limits before parsing: numbers, JSON, plain files, zip archives and arrays."""

import io
import json
import os
import struct
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from brinell.untrusted import (
    allowed_bytes,
    cleaned,
    csv_cells,
    npz_arrays,
    open_plain,
    open_zip,
    parse_json,
    parse_number,
    read_json,
    read_plain,
    safetensors_arrays,
)  # fmt: skip


@pytest.mark.parametrize("text", ["8/255", "0.031", "1e-3", ".5", "3", "-2/7", "+1.25e2", "123456789/1000000007", "1."])
def test_a_number_is_rounded_once(text: str) -> None:
    assert parse_number(text) == float(Fraction(text.removesuffix(".")))


BAD_NUMBERS = ["1e999999999", "1e400", "-1e999", "1/0", "0/0", "1/1e9", "inf", "nan", "a", "", "9" * 10**7, "1" * 65]
BAD_NUMBERS += ["1/" + "9" * 70, "1e-9999", "0x10", "1_0", "1/2/3", "--1", "１", "1e5e5", "0.5/255", "\ud800"]


@pytest.mark.parametrize("text", BAD_NUMBERS, ids=lambda t: ascii(t[:12]))
def test_other_texts_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|zero|large"):
        parse_number(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 10**6, "[" * 60 + "]" * 60, '{"a":' * 50 + "1" + "}" * 50, "[1e999]", "[-1e999]", "NaN", "[Infinity]",
             "[" + "9" * 5000 + "]", "[" + "9" * 40 + "]", "[" + "[]," * 2**20 + "[]]", "", "\x00", "{'a': 1}"],
    ids=lambda t: ascii(t[:8]),
)  # fmt: skip
def test_json_out_of_range_is_refused(text: str) -> None:
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_json(given)


def test_json_in_range_is_read_as_ever() -> None:
    data = {"a": [1, 2.5, None, True, "\u00e4"], "b": {"c": [2**63, -1e300]}}
    assert parse_json(json.dumps(data)) == data
    assert str(parse_json("[NaN, Infinity]", finite=False)) == "[nan, inf]"


def test_texts_become_printable() -> None:
    assert cleaned({"k\x1b": ["a\x1b[2Jb", "\ud800", "\u202e", "line\n", 3]}) == {
        "k\ufffd": ["a\ufffd[2Jb", "\ufffd", "\ufffd", "line\n", 3]
    }


def test_formulas_become_text() -> None:
    risky = ["=cmd()", "+1+cmd()", "-cmd()", "@cmd()", "\t=1", "\r=1"]
    assert csv_cells(risky) == [f"'{cell}" for cell in risky]
    safe = ["net", "-0.5", "+3", "1e-5", -0.5, 3, None, True, "-inf"]
    assert csv_cells(safe) == safe


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link", ".", "missing"):
        with pytest.raises(OSError, match=r"plain file|No such file"):
            open_plain(tmp_path / name)
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "good link").symlink_to(tmp_path / "file")
    assert read_plain(tmp_path / "good link") == b"abc"
    with pytest.raises(ValueError, match="more than 2"):
        read_plain(tmp_path / "file", 2)


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "sparse.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes"):
        read_plain(tmp_path / "sparse.json")
    with pytest.raises(ValueError, match="more than"):
        read_json(tmp_path / "sparse.json")


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def patched(path: Path, offset: int, value: bytes) -> Path:
    """Change the entry of the directory, and the same bytes of the local header, which lie four bytes earlier."""
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)
    return path


def test_arrays_are_those_of_numpy(tmp_path: Path) -> None:
    arrays = {"x": np.arange(12, dtype=">f4").reshape(3, 4), "f": np.asfortranarray(np.eye(3)), "n": np.array(5)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        read = npz_arrays(tmp_path / "a.npz")
        assert set(read) == set(arrays)
        for name, array in arrays.items():
            assert read[name].shape == array.shape
            assert (read[name] == array).all()
            assert read[name].dtype == array.dtype.newbyteorder("=")


def test_costly_and_odd_archives_are_refused(tmp_path: Path) -> None:
    honest = zipped(tmp_path / "a.npz", x=npy(np.arange(1000)))
    assert npz_arrays(honest)["x"].sum() == 499_500
    header = npy(np.zeros(1))[:128].replace(b"(1,), ", b"(1" + b"0" * 11 + b",),")[:128]
    claims = zipped(tmp_path / "b.npz", x=header)
    bomb = patched(zipped(tmp_path / "c.npz", x=npy(np.arange(10))), 24, struct.pack("<I", 300 << 20))
    objects = zipped(tmp_path / "d.npz", x=npy(np.array([{}], dtype=object)))
    encrypted = patched(zipped(tmp_path / "e.npz", x=npy(np.arange(10))), 8, struct.pack("<H", 1))
    unknown = patched(zipped(tmp_path / "f.npz", x=npy(np.arange(10))), 10, struct.pack("<H", 99))
    damaged = tmp_path / "g.npz"
    damaged.write_bytes(honest.read_bytes()[:200] + b"\xff" * 20 + honest.read_bytes()[220:])
    cut = tmp_path / "h.npz"
    cut.write_bytes(honest.read_bytes()[:-30])
    for path in (claims, bomb, objects, encrypted, unknown, damaged, cut):
        with pytest.raises(ValueError, match=r"."):
            npz_arrays(path)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(OSError, match="folder"):
        npz_arrays(tmp_path / "folder.npz")


def test_a_directory_of_many_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(50):
            archive.writestr(str(i), b"")
    with pytest.raises(ValueError, match="50 files"), open_zip(path, 20):
        pass
    with pytest.raises(ValueError, match="directory"), open_zip(path, 2):
        pass


def test_safetensors_with_a_false_header_are_refused(tmp_path: Path) -> None:
    head = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "a.safetensors"
    for data in (struct.pack("<Q", len(head)) + head + bytes(4), struct.pack("<Q", 2**63), b"", bytes(8)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"."):
            safetensors_arrays(path)


def test_a_large_file_may_take_more(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"a")
    (tmp_path / "large").write_bytes(os.urandom(4 << 20))
    assert allowed_bytes(tmp_path / "small") == 1 << 28
    assert allowed_bytes(tmp_path / "large") == 400 << 20
