"""A bundle is the same bytes whenever it is made, and anything that was done to it is told."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest

from brinell.errors import RunError, StorageError
from brinell.leaderboard.records import RECORD, Record
from brinell.results import Run
from brinell.results.format.files import read_rows, write_rows
from brinell.results.format.manifest import Manifest
from brinell.verification.bundle import INDEX, digest, is_bundle, members, opened, pack, root, unpack

GOLDEN = Path(__file__).parents[1] / "results" / "golden_run_v1"


def root_of(bundle: str | Path) -> str:
    with zipfile.ZipFile(bundle) as archive:
        return str(json.loads(archive.read("bundle.json"))["root"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle") / "golden.zip"
    pack(Run.open(GOLDEN), place)
    return place


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def remade(bundle: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The bundle with other members, written by an ordinary zip program."""
    with zipfile.ZipFile(bundle) as old:
        held = {name: old.read(name) for name in old.namelist()}
    change(held)
    with zipfile.ZipFile(out, "w") as new:
        for name, data in held.items():
            new.writestr(name, data)
    return out


def reindexed(held: dict[str, bytes], files: list[dict[str, object]]) -> None:
    """The index an attacker would write: these files, and a root that fits."""
    whole = {str(f["name"]): str(f["sha256"]) for f in files}
    held[INDEX] = json.dumps({"format": 1, "root": root(whole), "files": files}).encode()


def refused(path: Path, folder: Path, reason: str, **limits: int) -> None:
    with pytest.raises(RunError, match=reason) as error:
        unpack(path, folder, **limits)
    assert "refused" in str(error.value)


def test_a_bundle_holds_the_run(bundle: Path, tmp_path: Path) -> None:
    run = unpack(bundle, tmp_path)
    assert run.rows() == Run.open(GOLDEN).rows()
    assert (run.adversarials().x == Run.open(GOLDEN).adversarials().x).all()
    assert digest(run.path) == digest(GOLDEN) == root_of(bundle)
    with opened(bundle) as other:
        place = other.path
        assert str(other.robust_accuracy) == str(run.robust_accuracy)
    assert not place.exists()


def test_equal_runs_give_equal_bytes(bundle: Path, copied: Path, tmp_path: Path) -> None:
    for path in copied.rglob("*"):
        path.touch()
    (copied / "analyses").mkdir()
    (copied / "adversarials" / "orphan.safetensors").write_bytes(b"of a killed writer")
    assert pack(Run.open(copied), tmp_path / "again.zip") == root_of(bundle)
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_a_record_travels_along(copied: Path, tmp_path: Path) -> None:
    Record("cifar10", "Linf", "Mine").write(copied / RECORD)
    whole = pack(Run.open(copied), tmp_path / "b.zip")
    run = unpack(tmp_path / "b.zip", tmp_path / "out")
    assert (run.path / RECORD).read_bytes() == (copied / RECORD).read_bytes()
    assert digest(run.path) == digest(GOLDEN) != whole


def test_what_is_a_bundle(bundle: Path, tmp_path: Path) -> None:
    assert is_bundle(bundle)
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04")
    assert not is_bundle(tmp_path / "x.npz")
    assert not is_bundle(tmp_path) and not is_bundle(tmp_path / "nothing")


def test_an_unfinished_run_is_not_packed(copied: Path, tmp_path: Path) -> None:
    run = Run.open(copied)
    with pytest.raises(RunError, match="unfinished"):
        pack(Run(run.path, Manifest.read({**run.manifest, "finished": False})), tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()


def test_a_run_without_images_is_not_packed(copied: Path, tmp_path: Path) -> None:
    run = Run.open(copied)
    with pytest.raises(RunError, match="evaluated with images=False"):
        pack(Run(run.path, Manifest.read({**run.manifest, "images": False})), tmp_path / "b.zip")


def test_a_run_that_lost_its_images_is_not_packed(copied: Path, tmp_path: Path) -> None:
    lost = next(iter(sorted((copied / "adversarials").iterdir())))
    lost.unlink()
    with pytest.raises(RunError, match=lost.name):
        pack(Run.open(copied), tmp_path / "b.zip")


def test_no_place_for_the_bundle(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"b\.zip"):
        pack(Run.open(GOLDEN), tmp_path / "no" / "folder" / "b.zip")


def test_every_changed_byte_is_refused_or_changes_nothing(bundle: Path, tmp_path: Path) -> None:
    """Times and versions in the zip file's own headers decide nothing; everything else is covered by a hash."""
    data, harmless = bytearray(bundle.read_bytes()), 0
    honest = {name: (GOLDEN / name).read_bytes() for name in members(GOLDEN)}
    for i in range(0, len(data), max(1, len(data) // 300)):
        changed = bytearray(data)
        changed[i] ^= 0x11
        place, folder = tmp_path / "b.zip", tmp_path / f"out{i}"
        place.write_bytes(changed)
        try:
            run = unpack(place, folder)
        except RunError:
            continue
        harmless += 1
        assert {name: (run.path / name).read_bytes() for name in members(run.path)} == honest
    assert harmless < 30


def test_a_changed_byte_names_the_file(bundle: Path, tmp_path: Path) -> None:
    name = members(GOLDEN)[-1]

    def change(held: dict[str, bytes]) -> None:
        data = bytearray(held[name])
        data[len(data) // 2] ^= 1
        held[name] = bytes(data)

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", f"{name} with sha256.*it was changed")


def test_a_changed_row_is_refused(bundle: Path, tmp_path: Path) -> None:
    name = next(n for n in members(GOLDEN) if n.startswith("rows/"))
    shard = tmp_path / "shard.parquet"
    table = read_rows(GOLDEN / name)
    write_rows(shard, table.set_column(table.schema.get_field_index("broken"), "broken", pc.invert(table["broken"])))

    def change(held: dict[str, bytes]) -> None:
        held[name] = shard.read_bytes()

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", name)


def test_a_changed_hash_in_the_index_is_refused(bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        index = json.loads(held[INDEX])
        index["files"][0]["sha256"] = "0" * 64
        held[INDEX] = json.dumps(index).encode()

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", "the index was changed")


def test_a_missing_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    name = members(GOLDEN)[-1]
    refused(remade(bundle, tmp_path / "b.zip", lambda held: held.pop(name) and None), tmp_path / "out", name)


def test_a_file_more_is_refused(bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        held["rows/more.parquet"] = b""

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", "rows/more.parquet")


def test_a_bundle_without_a_manifest_is_refused(bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        files = [f for f in json.loads(held[INDEX])["files"] if f["name"] != "manifest.json"]
        del held["manifest.json"]
        reindexed(held, files)

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", "manifest.json")


@pytest.mark.parametrize(
    "name",
    ["../evil.parquet", "/evil.parquet", "rows/../../evil.parquet", "rows\\evil.parquet", "rows/.lock", "evil.py",
     "rows/sub/evil.parquet", "C:evil.parquet"],
)  # fmt: skip
def test_a_file_outside_is_refused(name: str, bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        files = json.loads(held[INDEX])["files"]
        held[name] = b"evil"
        sha = "a9c1a4ef43d2cb98b9e7e2d8aa7ba0e1a0aa4dbe5d1a4a2d1a4b4e0b1e8d7a11"
        reindexed(held, [*files, {"name": name, "bytes": 4, "sha256": sha}])

    target = tmp_path / "in" / "out"
    refused(remade(bundle, tmp_path / "b.zip", change), target, "only files that belong to a Run")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_link_is_refused(bundle: Path, tmp_path: Path) -> None:
    shutil.copy(bundle, tmp_path / "b.zip")
    entry = zipfile.ZipInfo("rows/link.parquet")
    entry.create_system, entry.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as archive:
        archive.writestr(entry, "manifest.json")
    refused(tmp_path / "b.zip", tmp_path / "out", "encrypted or no file")


def test_a_file_twice_is_refused(bundle: Path, tmp_path: Path) -> None:
    shutil.copy(bundle, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("manifest.json", "{}")
    refused(tmp_path / "b.zip", tmp_path / "out", "every file once")


def test_an_oversize_file_is_refused_before_it_is_read(bundle: Path, tmp_path: Path) -> None:
    refused(bundle, tmp_path / "out", "at most 100 bytes", largest=100)
    refused(bundle, tmp_path / "out", "at most 1,000 bytes together", total=1000)
    assert not (tmp_path / "out").exists()


def test_a_compressed_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    """A few bytes could become many."""
    place = tmp_path / "b.zip"
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(place, tmp_path / "out", "not compressed")


def test_a_size_that_is_not_the_announced_one_is_refused(bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        files = json.loads(held[INDEX])["files"]
        files[0]["bytes"] += 1
        reindexed(held, files)

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", "bytes")


@pytest.mark.parametrize("index", [b"{", b"[]", b"{}", b'{"format": 2, "root": "", "files": []}', b"\xff"])
def test_an_unreadable_index_is_refused(index: bytes, bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        held[INDEX] = index

    refused(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out", "readable index")


def test_a_manifest_nested_without_end_is_refused(bundle: Path, tmp_path: Path) -> None:
    def change(held: dict[str, bytes]) -> None:
        deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
        files = json.loads(held[INDEX])["files"]
        for f in files:
            if f["name"] == "manifest.json":
                f.update(bytes=len(deep), sha256=hashlib.sha256(deep).hexdigest())
        held["manifest.json"] = deep
        reindexed(held, files)

    with pytest.raises(RunError, match="JSON that is nested too deeply"):
        unpack(remade(bundle, tmp_path / "b.zip", change), tmp_path / "out")


def test_half_a_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "b.zip"
    place.write_bytes(bundle.read_bytes()[:-200])
    refused(place, tmp_path / "out", "a complete file")
