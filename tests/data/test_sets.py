"""Every named set is read from its published layout, to the byte, in its published order."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import cifar10, cifar100, corrupted, imagenet, mnist, pixels
from scipy.io import savemat

import brinell
from brinell import InputError
from brinell.data import CORRUPTIONS_3D, SETS, load
from brinell.data.check import check
from brinell.data.corruptions import COMMON
from brinell.data.matlab import read_mat
from brinell.errors import PlanError
from brinell.train.samples import as_samples


@pytest.fixture(autouse=True)
def _alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_OFFLINE", "1")


def same(problem: brinell.Problem, x: Any, y: Any) -> None:
    assert problem.x.dtype == torch.float32
    assert torch.equal(problem.x, torch.from_numpy(np.ascontiguousarray(x)).float() / 255)
    assert problem.y.tolist() == list(y)
    assert problem.ids.tolist() == list(range(len(y)))


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-py"])
def test_cifar10(inner: str, tmp_path: Path) -> None:
    x, y = cifar10(tmp_path / inner)
    same(load("cifar10", root=tmp_path), x[10:], y[10:])
    same(load("cifar10", split="train", root=tmp_path), x[:10], y[:10])
    same(load("cifar10", 3, split="train", root=str(tmp_path)), x[:3], y[:3])
    assert [load("cifar10", split=s, root=tmp_path).name for s in ("test", "train")] == ["cifar10", "cifar10/train"]
    assert load("cifar10", root=tmp_path).fingerprint() == load(tmp_path / inner).fingerprint()


@pytest.mark.parametrize("inner", [".", "cifar-100-python"])
def test_cifar100_has_fine_labels(inner: str, tmp_path: Path) -> None:
    x, y = cifar100(tmp_path / inner)
    same(load("cifar100", root=tmp_path), x[3:], y[3:])
    same(load("cifar100", split="train", root=tmp_path), x[:3], y[:3])


@pytest.mark.parametrize(
    ("name", "inner"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", ".")]
)
@pytest.mark.parametrize("packed", [True, False])
def test_idx(name: str, inner: str, packed: bool, tmp_path: Path) -> None:
    x, y = mnist(tmp_path / inner, packed)
    same(load(name, root=tmp_path), x, y)
    same(load(name, split="train", root=tmp_path), x[::-1], y[::-1])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_svhn(compressed: bool, kind: Any, tmp_path: Path) -> None:
    x, y = pixels(5, 4, 3, 32, 32), np.array([10, 1, 9, 10])
    stored = {"X": x.transpose(2, 3, 1, 0), "y": y[:, None].astype(kind)}
    savemat(tmp_path / "test_32x32.mat", stored, do_compression=compressed)
    same(load("svhn", root=tmp_path), x, [0, 1, 9, 0])
    savemat(tmp_path / "train_32x32.mat", stored, do_compression=compressed)
    same(load("svhn", split="train", root=tmp_path), x, [0, 1, 9, 0])
    savemat(tmp_path / "extra_32x32.mat", {**stored, "X": 255 - stored["X"]}, do_compression=compressed)
    same(load("svhn", split="extra", root=tmp_path), 255 - x, [0, 1, 9, 0])
    assert load("svhn", 2, split="extra", root=tmp_path).name == "svhn/extra"


def test_svhn_does_without_its_extra_images(tmp_path: Path) -> None:
    stored = {"X": pixels(5, 32, 32, 3, 2), "y": np.array([[1], [2]])}
    for split in ("test", "train"):
        savemat(tmp_path / f"{split}_32x32.mat", stored)
    assert [part.name for part in check("svhn", tmp_path)] == ["test", "train"]
    with pytest.raises(InputError, match=r"extra_32x32\.mat"):
        load("svhn", split="extra", root=tmp_path)
    savemat(tmp_path / "extra_32x32.mat", stored)
    (last,) = check("svhn", tmp_path)[2:]
    assert last.name == "extra" and last.trouble == "2 images instead of 531,131"
    with pytest.raises(PlanError, match="a split"):
        load("cifar10", split="extra", root=tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_mat_files_of_every_kind_of_number(compressed: bool, tmp_path: Path) -> None:
    kinds = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
    stored: dict[str, Any] = {k: (np.arange(6, dtype=k) - (3 if k[0] != "u" else 0)).reshape(2, 3) for k in kinds}
    # What is passed over, and a name of one letter, which is written in four bytes.
    stored |= {"text": "hello", "cells": np.array([1, "a"], dtype=object), "z": np.array([[1.5]])}
    savemat(tmp_path / "a.mat", stored, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat", *kinds, "z")
    for name, values in zip([*kinds, "z"], found, strict=True):
        assert values.dtype == stored[name].dtype and np.array_equal(values, stored[name])


def test_mat_files_in_the_other_byte_order(tmp_path: Path) -> None:
    """Written here: two doubles as bytes, in a matrix named v."""
    word = lambda *values: b"".join(v.to_bytes(4, "big") for v in values)  # noqa: E731
    small = lambda kind, content: word(len(content) << 16 | kind) + content.ljust(4, b"\0")  # noqa: E731
    inside = word(6, 8, 6, 0) + word(5, 8, 1, 2) + small(1, b"v") + small(2, bytes((7, 250)))
    head = b"MATLAB".ljust(124) + b"\x01\x00" + b"MI"
    (tmp_path / "a.mat").write_bytes(head + word(14, len(inside)) + inside)
    (v,) = read_mat(tmp_path / "a.mat", "v")
    assert v.tolist() == [[7.0, 250.0]] and v.dtype == np.float64


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "absent", "version"])
def test_damaged_mat_files(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"Y" if damage == "absent" else "X": pixels(0, 32, 32, 3, 2), "y": np.array([[1], [2]])})
    blob = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"hello" * 40, "cut": blob[:-500]}.get(damage, blob))
    if damage == "version":
        path.write_bytes(blob[:124] + b"\0\2" + blob[126:])
    with pytest.raises(InputError, match="readable file test_32x32"):
        load("svhn", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "inner"), [("cifar10-c", "CIFAR-10-C"), ("cifar10-c", "."), ("cifar100-c", "CIFAR-100-C")]
)
def test_corrupted_arrays(name: str, inner: str, tmp_path: Path) -> None:
    x, y = corrupted(tmp_path / inner, "fog")
    for severity in range(1, 6):
        rows = slice(3 * (severity - 1), 3 * severity)
        problem = load(name, corruption="fog", severity=severity, root=tmp_path)
        same(problem, x[rows], y[rows])
        assert problem.name == f"{name}/fog/{severity}"
    same(load(name, 2, corruption="fog", severity=5, root=tmp_path), x[12:14], y[12:14])


def test_cifar10_1(tmp_path: Path) -> None:
    x, y = pixels(6, 4, 32, 32, 3), np.array([3, 9, 0, 1], dtype=np.int32)
    for version, part in (("v6", slice(0, 4)), ("v4", slice(1, 4))):
        np.save(tmp_path / f"cifar10.1_{version}_data.npy", x[part])
        np.save(tmp_path / f"cifar10.1_{version}_labels.npy", y[part])
    same(load("cifar10.1", root=tmp_path), x.transpose(0, 3, 1, 2), y)
    same(load("cifar10.1", version="v4", root=tmp_path), x[1:].transpose(0, 3, 1, 2), y[1:])


def test_imagenet_is_streamed_in_the_order_of_a_list(tmp_path: Path) -> None:
    pictures = {f"{c}/{i}.JPEG": pixels(i, 32, 40, 3) for i, c in enumerate(["n02000003", "n01440764", "n02000998"])}
    names = imagenet(tmp_path / "val", pictures)
    (tmp_path / "some.txt").write_text("val/n02000998/2.JPEG\nn02000003/0.JPEG\n\n")
    problem = load("imagenet", root=tmp_path, preprocessing="none", paths=tmp_path / "some.txt")
    (chunk,) = problem.chunks(10)
    assert problem.streamed and chunk.y.tolist() == [999, names.index("n02000003")] and chunk.ids.tolist() == [0, 1]
    wanted = np.stack([pictures["n02000998/2.JPEG"], pictures["n02000003/0.JPEG"]]).transpose(0, 3, 1, 2)
    assert torch.equal(chunk.x, torch.from_numpy(wanted).float() / 255)
    assert problem.name == "imagenet/some"
    whole = load("imagenet", root=tmp_path / "val")
    assert [c.y.tolist() for c in whole.chunks(10)] == [[0, 4, 999]] and whole.shape() == (3, 224, 224)
    assert [c.ids.tolist() for c in load("imagenet", 2, root=tmp_path).chunks(10)] == [[0, 1]]


@pytest.mark.parametrize(("name", "corruption"), [("imagenet-c", "snow"), ("imagenet-3dcc", "flash")])
@pytest.mark.parametrize("outer", [True, False])
def test_corrupted_folders(name: str, corruption: str, outer: bool, tmp_path: Path) -> None:
    picture = pixels(0, 224, 224, 3)
    base = tmp_path / {"imagenet-c": "ImageNet-C", "imagenet-3dcc": "ImageNet-3DCC"}[name] if outer else tmp_path
    imagenet(base / corruption / "4", {"n02000000/a.JPEG": picture})
    problem = load(name, corruption=corruption, severity=4, root=tmp_path)
    (chunk,) = problem.chunks(10)
    assert chunk.y.tolist() == [1] and problem.name == f"{name}/{corruption}/4/Res224"
    assert torch.equal(chunk.x[0], torch.from_numpy(picture.transpose(2, 0, 1)).float() / 255)
    with pytest.raises(InputError, match=f"{corruption}/3"):
        load(name, corruption=corruption, severity=3, root=tmp_path)


def test_prefixes_say_what_a_path_is(tmp_path: Path) -> None:
    x, y = cifar10(tmp_path / "cifar10")
    same(load(f"folder:{tmp_path / 'cifar10'}"), x[10:], y[10:])
    same(load(tmp_path / "cifar10", split="train"), x[:10], y[:10])
    np.savez(tmp_path / "a.npz", x=np.float32(x[:2]) / 255, y=y[:2])
    assert load(f"npz:{tmp_path / 'a.npz'}").y.tolist() == y[:2].tolist()


def test_training_takes_names_too(tmp_path: Path) -> None:
    x, y = cifar10(tmp_path / "home" / "data" / "cifar10" / "cifar-10-batches-py")
    samples = as_samples("cifar10")
    assert samples.x.dtype == torch.uint8 and np.array_equal(samples.x.numpy(), x[:10])
    assert samples.y.tolist() == y[:10].tolist() and samples.name == "cifar10"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("demo", {"split": "train"}, "split=train"),
        ("cifar10", {"severity": 3}, "severity=3"),
        ("cifar10", {"preprocessing": "Res224"}, "preprocessing=Res224"),
        ("cifar10-c", {"split": "train", "corruption": "fog", "severity": 1}, "split=train"),
        ("cifar10-c", {"corruption": "fog"}, "no severity"),
        ("cifar10-c", {"severity": 1}, "no corruption"),
        ("cifar10-c", {"corruption": "fog", "severity": 6}, "from 1 to 5"),
        ("cifar10.1", {"split": "train"}, "split=train"),
        ("cifar-100", {}, "Did you mean 'cifar100'"),
        ("cifar10", {"n": 0}, "n of at least 1"),
    ],
)
def test_options_that_make_no_sense(name: str, options: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        load(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar10", {"split": "validation"}),
        ("cifar10-c", {"corruption": "smog", "severity": 1}),
        ("imagenet-3dcc", {"corruption": "snow", "severity": 1}),
        ("cifar10.1", {"version": "v5"}),
        ("imagenet", {"preprocessing": "Res255"}),
    ],
)
def test_unknown_names_of_parts(name: str, options: Any) -> None:
    with pytest.raises(PlanError, match="among"):
        load(name, **options)


def test_files_of_another_set(tmp_path: Path) -> None:
    """CIFAR-100's images with labels up to 99 under the names of CIFAR-10."""
    stored = {b"data": pixels(0, 2, 3072), b"labels": [3, 99]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(stored, protocol=2))
    with pytest.raises(InputError, match="labels from 0 to 9 in CIFAR-10"):
        load("cifar10", root=tmp_path)


def python2(x: Any, y: list[int], labels: str) -> bytes:
    """A batch as Python 2 pickled it: text of one byte a letter, numpy under its old name."""
    text = lambda s: b"U" + bytes((len(s),)) + s.encode()  # noqa: E731
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    values = b"T" + x.nbytes.to_bytes(4, "little") + x.tobytes()
    array += b"(K\x01K" + bytes((len(x),)) + b"M\x00\x0c\x86" + kind + b"\x89" + values + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes((i,)) for i in y) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(labels) + numbers + b"u."


@pytest.mark.parametrize(
    ("name", "file", "labels"), [("cifar10", "test_batch", "labels"), ("cifar100", "test", "fine_labels")]
)
def test_batches_as_python_2_wrote_them(name: str, file: str, labels: str, tmp_path: Path) -> None:
    x = pixels(7, 2, 3072)
    (tmp_path / file).write_bytes(python2(x, [9, 4], labels))
    assert np.array_equal(
        pickle.loads(python2(x, [9, 4], labels).replace(b"numpy.core", b"numpy._core"), encoding="bytes")[b"data"], x
    )
    same(load(name, root=tmp_path), x.reshape(2, 3, 32, 32), [9, 4])


def files(tmp_path: Path) -> list[tuple[str, dict[str, Any], Path]]:
    """A small file of every format, with how it is loaded."""
    cifar10(tmp_path), mnist(tmp_path, packed=True), corrupted(tmp_path, "fog")
    savemat(tmp_path / "test_32x32.mat", {"X": pixels(0, 32, 32, 3, 2), "y": np.array([[1], [2]])})
    return [
        ("cifar10", {}, tmp_path / "test_batch"),
        ("mnist", {}, tmp_path / "t10k-images-idx3-ubyte.gz"),
        ("cifar10-c", {"corruption": "fog", "severity": 1}, tmp_path / "fog.npy"),
        ("svhn", {}, tmp_path / "test_32x32.mat"),
    ]


def test_damage_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever a byte is changed to near the start, where the formats describe themselves, no reader falls over."""
    r = np.random.default_rng(0)
    refused = 0
    for name, options, path in files(tmp_path):
        whole = path.read_bytes()
        for _ in range(150):
            blob = bytearray(whole)
            blob[int(r.integers(0, min(len(blob), 400)))] = int(r.integers(0, 256))
            path.write_bytes(bytes(blob[: r.integers(1, len(blob))] if r.random() < 0.2 else blob))
            try:
                load(name, root=tmp_path, **options)
            except InputError:
                refused += 1
    assert refused > 100


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def test_a_pickle_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InputError, match=r"(posix|os|nt)\.system"):
        load("cifar10", root=tmp_path)
    assert not (tmp_path / "owned").exists()
    pickle.loads((tmp_path / "test_batch").read_bytes())
    assert (tmp_path / "owned").exists()  # the trap works


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: np.save(p / "fog.npy", np.array([{}], dtype=object), allow_pickle=True),
        lambda p: (p / "fog.npy").write_bytes((p / "fog.npy").read_bytes()[:-7]),
        lambda p: np.save(p / "fog.npy", pixels(0, 16, 32, 32, 3)),
        lambda p: np.save(p / "fog.npy", pixels(0, 15, 3, 32, 32)),
        lambda p: np.save(p / "labels.npy", np.zeros(14, np.int64)),
        lambda p: np.save(p / "labels.npy", np.zeros(15, np.float32)),
    ],
    ids=["pickle", "cut", "unequal", "shape", "labels", "kind"],
)
def test_damaged_arrays(spoil: Any, tmp_path: Path) -> None:
    corrupted(tmp_path, "fog")
    spoil(tmp_path)
    with pytest.raises(InputError, match="readable file"):
        load("cifar10-c", corruption="fog", severity=1, root=tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_absent_files_are_named_with_their_place(name: str, tmp_path: Path) -> None:
    """Offline and with an empty cache, and with a root that has nothing."""
    s = SETS[name]
    part = s.layout.subsets()[0]
    options = {"corruption": part.corruption, "severity": part.severity} if part.corruption else {}
    with pytest.raises(InputError) as caught:
        load(name, **options)
    told = str(caught.value)
    place = tmp_path / "home" / "data" / name
    if s.automatic:
        needed = [f for f in s.files if f.holds or f.name.removesuffix(".gz") in s.layout.files(part)]
        assert needed and "BRINELL_OFFLINE" in told
        assert all(f"{f.sources[0]} to {place / f.name}" in told for f in needed)
    else:
        assert f"{place}/{s.layout.places(part)[0]}" in told and s.layout.files(part)[0] in told
    with pytest.raises(InputError) as caught:
        load(name, root=tmp_path / "empty", **options)
    assert all(f in str(caught.value) for f in s.layout.files(part)) and str(tmp_path / "empty") in str(caught.value)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_the_corruptions_are_those_of_the_benchmark() -> None:
    assert len(set(COMMON)) == 15 and len(set(CORRUPTIONS_3D)) == 12
    held = [c for f in SETS["imagenet-c"].files for c in f.holds]
    assert sorted(held) == sorted(COMMON)
    assert len(SETS["cifar10-c"].layout.subsets()) == 75


def real(shared: Path) -> tuple[Path, Any, Any]:
    """The script that writes CIFAR-10's batches, the grid of the test images, their labels."""
    from PIL import Image

    folder = shared / "data"
    if not (folder / "cifar10_to_batches.py").exists():
        pytest.skip("needs CIFAR-10 among the shared data")
    with Image.open(folder / "cifar10" / "test_batch.webp") as file:
        grid = np.asarray(file.convert("RGB"))
    return folder / "cifar10_to_batches.py", grid, np.load(folder / "cifar10" / "labels.npz")["test"]


def tile(grid: Any, i: int) -> torch.Tensor:
    row, column = divmod(i, 100)
    cut = grid[32 * row : 32 * row + 32, 32 * column : 32 * column + 32].transpose(2, 0, 1)
    return torch.from_numpy(cut.copy()).float() / 255


def test_the_first_images_of_the_real_cifar10(shared: Path, tmp_path: Path) -> None:
    """Red, green and blue planes one after the other, row by row, as the publication describes its batches."""
    _, grid, y = real(shared)
    rows = np.stack([(255 * tile(grid, i)).round().byte().numpy().reshape(3072) for i in range(120)])
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": rows, b"labels": y[:120].tolist()}, protocol=2))
    problem = load("cifar10", root=tmp_path)
    assert all(torch.equal(problem.x[i], tile(grid, i)) for i in (0, 1, 99, 100, 119))
    assert problem.y[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]  # a cat, ships, an airplane, frogs, a car


@pytest.mark.slow
def test_the_whole_real_cifar10(shared: Path, tmp_path: Path) -> None:
    script, grid, y = real(shared)
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    problem = load("cifar10", root=tmp_path)
    assert all(torch.equal(problem.x[i], tile(grid, i)) for i in range(0, 10_000, 7))
    assert problem.y.tolist() == y.tolist()
    assert [(c.n, c.trouble) for c in brinell.data.check("cifar10", root=tmp_path)] == [(10_000, ""), (50_000, "")]
