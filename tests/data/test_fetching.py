"""Data sets arrive whole and checked, or nothing is left of them; archives stay inside their folder."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import cifar10, imagenet, mnist, pixels
from scipy.io import savemat
from serving import Source

import brinell
from brinell import InputError
from brinell.data import SETS, check, fetch, layouts, load, place
from brinell.data import catalogue as table
from brinell.data.catalogue import DataFile, DataSet
from brinell.data.check import state
from brinell.fetch import download, unpack

OWNED = Path(tempfile.gettempdir()) / "brinell-owned"
"""Where an archive that leaves its folder would write."""


def left(home: Path) -> list[str]:
    return sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file() or p.name.startswith("."))


def md5(blob: bytes) -> str:
    return f"md5:{hashlib.md5(blob).hexdigest()}"


def tar(folder: Path, mode: str = "w:gz") -> bytes:
    """The archive of a folder's contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return out.getvalue()


Serve = Callable[..., DataSet]


@pytest.fixture
def serve(source: Source, home: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Lets a set be published on this machine: file names and contents; their digests are told unless `told` is off."""

    def publish(name: str, blobs: dict[str, bytes], told: bool = True) -> DataSet:
        old = {f.name: f for f in SETS[name].files}
        source.files |= {f"/{file}": blob for file, blob in blobs.items()}
        files = tuple(
            DataFile(file, (f"{source.url}/{file}",), md5(blob) if told else None, old[file].holds, old[file].later)
            for file, blob in blobs.items()
        )
        monkeypatch.setitem(table.SETS, name, replace(SETS[name], files=files))
        return table.SETS[name]

    return publish


@pytest.fixture
def batches(tmp_path: Path) -> tuple[bytes, Any, Any]:
    """The archive of a small CIFAR-10, its test images and labels."""
    x, y = cifar10(tmp_path / "published" / "cifar-10-batches-py")
    return tar(tmp_path / "published"), x[10:], y[10:]


ARCHIVE = "cifar-10-python.tar.gz"
KEPT = ["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]
WHOLE = sorted([f"data/cifar10/cifar-10-batches-py/{f}" for f in KEPT] + [f"data/cifar10/{ARCHIVE}.sha256"])


@pytest.mark.parametrize("told", [True, False])
def test_an_archive_is_fetched_once_and_unpacked(
    told: bool, source: Source, home: Path, serve: Serve, batches: Any
) -> None:
    blob, x, y = batches
    serve("cifar10", {ARCHIVE: blob}, told)
    assert state("cifar10") == ""
    for _ in range(2):
        problem = load("cifar10")
        assert torch.equal(problem.x, torch.from_numpy(x).float() / 255) and problem.y.tolist() == y.tolist()
    assert len(source.asked) == 1 and left(home) == WHOLE and state("cifar10") == "whole"
    assert (place("cifar10") / f"{ARCHIVE}.sha256").read_text().strip() == hashlib.sha256(blob).hexdigest()


def test_a_folder_that_lost_a_file_is_told(source: Source, serve: Serve, batches: Any) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    fetch("cifar10")
    (place("cifar10") / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(InputError, match="test_batch") as caught:
        load("cifar10")
    assert f"delete {place('cifar10')} " in caught.value.remedy and len(source.asked) == 1
    assert len(load("cifar10", split="train")) == 10


def test_a_cut_connection_goes_on_where_it_was(source: Source, home: Path, serve: Serve, batches: Any) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    source.cuts, source.cut_at = 2, 1000
    seen: list[tuple[int, int | None]] = []
    fetch("cifar10", lambda done, total: seen.append((done, total)))
    assert [r for _, r in source.asked] == [None, "bytes=1000-", "bytes=2000-"]
    assert seen[-1] == (len(batches[0]), len(batches[0])) and left(home) == WHOLE


def test_what_arrived_before_the_last_cut_is_kept_for_the_next_call(
    source: Source, home: Path, serve: Serve, batches: Any
) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    source.cuts, source.cut_at = download.TRIES, 1000
    with pytest.raises(InputError, match="broke 3 times") as caught:
        load("cifar10")
    assert str(place("cifar10") / ARCHIVE) in caught.value.remedy
    load("cifar10")
    assert source.asked[-1][1] == f"bytes={1000 * download.TRIES}-" and left(home) == WHOLE


def test_a_wrong_digest_is_refused(source: Source, home: Path, serve: Serve, batches: Any) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    source.files[f"/{ARCHIVE}"] = batches[0] + b"\0"
    with pytest.raises(InputError, match=f"md5 {md5(batches[0])[4:20]}"):
        load("cifar10")
    assert left(home) == []


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("page", [b"<!DOCTYPE html><html>busy</html>", b""])
def test_a_web_page_is_refused(page: bytes, told: bool, home: Path, serve: Serve) -> None:
    serve("cifar10", {ARCHIVE: page}, told)
    with pytest.raises(InputError, match="a web page instead of a file" if page else "an empty file"):
        load("cifar10")
    assert left(home) == []


def test_what_is_no_archive_is_refused(home: Path, serve: Serve, batches: Any) -> None:
    for blob in (b"something else entirely" * 100, batches[0][: len(batches[0]) // 2]):
        serve("cifar10", {ARCHIVE: blob}, told=False)
        with pytest.raises(InputError, match="as a complete archive"):
            load("cifar10")
        assert left(home) == []


def test_another_archive_is_refused(home: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "published" / "holiday").mkdir(parents=True)
    serve("cifar10", {ARCHIVE: tar(tmp_path / "published")}, told=False)
    with pytest.raises(InputError, match="cifar-10-batches-py in cifar-10-python"):
        load("cifar10")
    (tmp_path / "published" / "cifar-10-batches-py").mkdir()
    serve("cifar10", {ARCHIVE: tar(tmp_path / "published")}, told=False)
    with pytest.raises(InputError, match="test_batch of test in cifar-10-python"):
        load("cifar10")
    assert left(home) == []


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def test_a_pickle_that_runs_code_never_gets_its_name(
    home: Path, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cifar10(tmp_path / "published" / "cifar-10-batches-py")
    trap = tmp_path / "published" / "cifar-10-batches-py" / "data_batch_3"
    trap.write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    serve("cifar10", {ARCHIVE: tar(tmp_path / "published")})
    with pytest.raises(InputError, match=r"(posix|os|nt)\.system"):
        load("cifar10")
    assert left(home) == [] and not (tmp_path / "owned").exists()
    pickle.loads(trap.read_bytes())
    assert (tmp_path / "owned").exists()  # the trap works


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, to, 3 if kind == tarfile.REGTYPE else 0
    return info


ESCAPES = {
    "up": [member("../owned")],
    "up inside": [member("a/../../owned")],
    "absolute": [member(str(OWNED))],
    "backslash": [member("..\\owned")],
    "drive": [member("C:/owned")],
    "symlink": [member("a", tarfile.SYMTYPE, ".."), member("a/owned")],
    "hard link": [member("a", tarfile.LNKTYPE, "../../secret")],
    "device": [member("a", tarfile.CHRTYPE)],
    "pipe": [member("a", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=list(ESCAPES))
def test_members_that_lead_out_of_the_folder_are_refused(
    members: list[tarfile.TarInfo], home: Path, serve: Serve, tmp_path: Path
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(member("fine"), io.BytesIO(b"abc"))
        for info in members:
            archive.addfile(info, io.BytesIO(b"abc"))
    serve("cifar10", {ARCHIVE: out.getvalue()})
    with pytest.raises(InputError, match=r"leads out of the folder|is a link or a device"):
        load("cifar10")
    assert left(home) == [] and not list(tmp_path.rglob("owned")) and not OWNED.exists()


@pytest.mark.parametrize("name", ["../owned", "a/../../owned", str(OWNED), "..\\owned"])
def test_zip_files_are_watched_as_well(name: str, tmp_path: Path) -> None:
    path, into = tmp_path / "a.zip", tmp_path / "in" / "here"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fine/file", b"abc")
        archive.writestr(name, b"abc")
    with pytest.raises(InputError, match="leads out of the folder"):
        unpack(path, into, "a set", InputError, lambda _: None)
    assert list(into.iterdir()) == [] and not list(tmp_path.rglob("owned"))


def test_links_in_zip_files_are_refused_and_the_rest_is_unpacked(tmp_path: Path) -> None:
    path, into, link = tmp_path / "a.zip", tmp_path / "here", zipfile.ZipInfo("link")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fine/file", b"abc")
    unpack(path, into, "a set", InputError, lambda _: None)
    assert (into / "fine" / "file").read_bytes() == b"abc" and [p.name for p in into.iterdir()] == ["fine"]
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "..")
    with pytest.raises(InputError, match="that is a link"):
        unpack(path, tmp_path / "there", "a set", InputError, lambda _: None)
    assert list((tmp_path / "there").iterdir()) == []


def test_files_with_holes_are_refused_before_they_fill_the_disk(tmp_path: Path) -> None:
    """A few bytes that announce a terabyte of zeros."""
    path, into, info = tmp_path / "a.tar", tmp_path / "here", tarfile.TarInfo("large")
    info.size, info.pax_headers = 1, {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"x"))
    with tarfile.open(path) as archive:
        assert archive.getmembers()[0].size == 1 << 40 and archive.getmembers()[0].isreg()  # the trap works
    with pytest.raises(InputError, match="is sparse"):
        unpack(path, into, "a set", InputError, lambda folder: None)
    assert not list(into.iterdir())


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    (tmp_path / "from" / "a").mkdir(parents=True)
    (tmp_path / "from" / "a" / "file").write_text("new")
    (tmp_path / "to" / "a").mkdir(parents=True)
    (tmp_path / "to" / "a" / "file").write_text("old")
    (tmp_path / "a.tar").write_bytes(tar(tmp_path / "from", "w"))
    unpack(tmp_path / "a.tar", tmp_path / "to", "a set", InputError, lambda _: None)
    assert (tmp_path / "to" / "a" / "file").read_text() == "old"


KILLED = """
import os, sys
from pathlib import Path
from brinell.data import fetch, layouts, catalogue
from brinell.fetch import archive
write, count = archive._write, 0
def killed(place, file, most):
    global count
    size = write(place, file, most)
    count += 1
    if count == 4:
        os.kill(os.getpid(), 9)
    return size
archive._write = killed
from dataclasses import replace
s = catalogue.SETS["cifar10"]
catalogue.SETS["cifar10"] = replace(s, files=(replace(s.files[0], sources=(sys.argv[1],), digest=None),))
fetch("cifar10")
"""


@pytest.mark.skipif(download.fcntl is None, reason="needs locks on folders")
def test_what_a_killed_process_left_is_removed(source: Source, home: Path, serve: Serve, batches: Any) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    env = {**os.environ, "PYTHONPATH": str(Path(brinell.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", KILLED, f"{source.url}/{ARCHIVE}"], env=env, check=False)
    assert done.returncode == -9 and state("cifar10") == ""
    assert [p for p in left(home) if "/.unpacking-" in p]
    load("cifar10")
    assert left(home) == WHOLE and source.asked[-1][1] == f"bytes={len(batches[0])}-"


def test_an_archive_put_there_by_hand_is_unpacked_and_kept(
    home: Path, serve: Serve, batches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("cifar10", {ARCHIVE: batches[0]})
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    place("cifar10").mkdir(parents=True)
    (place("cifar10") / ARCHIVE).write_bytes(batches[0])
    assert load("cifar10").y.tolist() == batches[2].tolist()
    assert (place("cifar10") / ARCHIVE).read_bytes() == batches[0]


IDX = [f"{s}-{kind}.gz" for s in ("t10k", "train") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]


@pytest.fixture
def digits(tmp_path: Path) -> dict[str, bytes]:
    mnist(tmp_path / "published")
    return {name: (tmp_path / "published" / name).read_bytes() for name in IDX}


def test_only_the_files_of_the_split_are_fetched(source: Source, home: Path, serve: Serve, digits: Any) -> None:
    serve("mnist", digits)
    load("mnist")
    assert [p for p, _ in source.asked] == [f"/{name}" for name in IDX[:2]] and state("mnist") == "part"
    fetch("mnist")
    assert [p for p, _ in source.asked] == [f"/{name}" for name in IDX] and state("mnist") == "whole"
    assert left(home) == sorted(f"data/mnist/{n}{end}" for n in IDX for end in ("", ".sha256"))


@pytest.mark.parametrize("told", [True, False])
def test_a_file_that_changes_in_the_cache_is_refused(told: bool, home: Path, serve: Serve, digits: Any) -> None:
    serve("mnist", digits, told)
    load("mnist")
    (place("mnist") / IDX[0]).write_bytes(digits[IDX[2]])
    with pytest.raises(InputError, match="md5" if told else "sha256"):
        load("mnist")
    (part, _) = check("mnist")
    assert not part.ok and "instead of" in part.trouble


def test_a_file_that_cannot_be_read_is_refused(home: Path, serve: Serve, digits: Any) -> None:
    serve("mnist", {**digits, IDX[1]: digits[IDX[0]]}, told=False)
    with pytest.raises(InputError, match="the file starts with"):
        load("mnist")
    assert left(home) == sorted([f"data/mnist/{IDX[0]}", f"data/mnist/{IDX[0]}.sha256"])


def test_every_missing_file_is_named_at_once(home: Path, serve: Serve, digits: Any, source: Source) -> None:
    serve("mnist", digits)
    source.files.clear()
    with pytest.raises(InputError, match="404") as caught:
        load("mnist")
    assert all(f"{source.url}/{n} to {place('mnist') / n}" in caught.value.remedy for n in IDX[:2])


def test_a_mirror_is_asked_first(
    home: Path, serve: Serve, digits: Any, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("mnist", digits)
    (tmp_path / "share" / "data" / "mnist").mkdir(parents=True)
    for name, blob in digits.items():
        (tmp_path / "share" / "data" / "mnist" / name).write_bytes(blob)
    monkeypatch.setenv("BRINELL_MIRROR", (tmp_path / "share").as_uri())
    assert load("mnist").y.tolist() == [7, 2, 1, 0] and source.asked == []


def test_large_sets_are_fetched_only_when_asked_to(
    source: Source, home: Path, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "IMAGENET_CLASSES", 3)
    for severity in range(1, 6):
        inner = tmp_path / "published" / "flash" / str(severity)
        imagenet(inner, {"n02000000/a.JPEG": pixels(0, 8, 8, 3)}, classes=3)
    serve("imagenet-3dcc", {"flash.tar.gz": tar(tmp_path / "published")}, told=False)
    with pytest.raises(InputError, match="brinell data fetch imagenet-3dcc"):
        load("imagenet-3dcc", corruption="flash", severity=2)
    assert source.asked == []
    fetch("imagenet-3dcc")
    problem = load("imagenet-3dcc", corruption="flash", severity=2)
    assert problem.shape() == (3, 224, 224) and next(problem.chunks(2)).y.tolist() == [1]
    assert not (place("imagenet-3dcc") / "flash.tar.gz").exists()


def test_archives_of_pictures_must_have_every_severity_and_class(
    home: Path, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for severity in (1, 2, 3, 5):
        inner = tmp_path / "published" / "flash" / str(severity)
        imagenet(inner, {"n02000000/a.JPEG": pixels(0, 8, 8, 3)}, classes=3)
    serve("imagenet-3dcc", {"flash.tar.gz": tar(tmp_path / "published")}, told=False)
    with pytest.raises(InputError, match="1000 class folders"):
        fetch("imagenet-3dcc")
    monkeypatch.setattr(layouts, "IMAGENET_CLASSES", 3)
    with pytest.raises(InputError, match=r"n01440764 of flash/4 in flash\.tar\.gz"):
        fetch("imagenet-3dcc")
    assert left(home) == []


def test_what_is_published_to_account_holders_only(home: Path) -> None:
    with pytest.raises(InputError, match=r"image-net\.org") as caught:
        fetch("imagenet")
    assert str(home / "data" / "imagenet" / "val") in caught.value.remedy


def test_check_counts_against_the_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    x = pixels(0, 3, 32, 32, 3)
    np.save(tmp_path / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.array([0, 1, 9]))
    six, four = check("cifar10.1", root=tmp_path)
    assert (six.name, six.n, six.published, six.trouble) == ("v6", 3, 2000, "3 images instead of 2,000")
    assert (four.n, four.ok) == (None, False) and "cifar10.1_v4_data.npy" in four.trouble
    monkeypatch.setitem(table.SETS, "cifar10.1", replace(SETS["cifar10.1"], sizes={"v6": 3, "v4": 3}))
    assert check("cifar10.1", root=tmp_path)[0].ok
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.array([0, 1, 10]))
    assert check("cifar10.1", root=tmp_path)[0].trouble == "labels from 0 to 10 instead of 0 to 9"
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.array([0, 1]))
    assert "not 3 labels" in check("cifar10.1", root=tmp_path)[0].trouble


def test_extra_images_are_fetched_when_they_are_loaded(serve: Serve, source: Source, tmp_path: Path) -> None:
    blobs = {}
    for split in ("test", "train", "extra"):
        savemat(tmp_path / "a.mat", {"X": pixels(len(split), 32, 32, 3, 2), "y": np.array([[1], [2]])})
        blobs[f"{split}_32x32.mat"] = (tmp_path / "a.mat").read_bytes()
    serve("svhn", blobs)
    fetch("svhn")
    assert state("svhn") == "whole" and not [path for path, _ in source.asked if "extra" in path]
    assert (
        torch.equal(load("svhn", split="extra").y, torch.tensor([1, 2])) and source.asked[-1][0] == "/extra_32x32.mat"
    )


@pytest.mark.parametrize("name", SETS)
def test_the_table_is_sound(name: str) -> None:
    s = SETS[name]
    parts = s.layout.subsets()
    assert {c.version or c.split for c in parts} <= set(s.sizes)
    for f in s.files:
        assert all(u.startswith(("https://", "http://")) and f.name in u for u in f.sources) and f.sources
        kind, _, digest = (f.digest or "md5:" + 32 * "0").partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[kind] and int(digest, 16) >= 0
    held = {n for f in s.files for n in (f.holds or (f.name.removesuffix(".gz"),))}
    # Every part can be fetched, where anything can: its folder or its files are among what the files hold.
    for c in parts if s.files else ():
        among = [any(path == h or path.startswith(f"{h}/") for h in held) for path in s.layout.places(c)]
        files = [any(path == h or path.startswith(f"{h}/") for h in held) for path in s.layout.files(c)]
        assert any(among) or all(files)
