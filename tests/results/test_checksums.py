"""Damage to a stored Run is noticed, a kill at any moment is survived, and nothing is deleted that belongs to a Run."""

import importlib.util
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brinell.errors import RunError
from brinell.results import Run, Writer
from brinell.results.format import checksums, files, writer
from brinell.results.format.checksums import LIST
from brinell.testing.runs import reseal

ROOT = Path(__file__).parents[2]
SAMPLES = {0: "..x", 1: "x", 2: ".x", 3: "...", 4: ".x", 5: "..."}


def corrupt() -> Any:
    spec = importlib.util.spec_from_file_location("fortress_corrupt", ROOT / "benchmarks" / "fortress_corrupt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_random_damage_is_noticed_or_harmless() -> None:
    outcomes = corrupt().run(72, seed=7)
    assert sum(o.tried for o in outcomes) == 72
    assert [detail for o in outcomes for detail in o.details] == []


def test_a_deleted_shard_never_changes_a_number(world: Any, tmp_path: Path) -> None:
    """Without one of two shards the accuracy would be another."""
    for folder in ("rows", "adversarials"):
        run = world.run(tmp_path / folder, SAMPLES)
        next((run.path / folder).iterdir()).unlink()
        with pytest.raises(RunError, match="no such file"):
            Run.open(run.path)


def test_one_byte_of_a_column_name_is_noticed(world: Any, tmp_path: Path) -> None:
    for k, name in enumerate((b"verified", b"adv_shard")):
        run = world.run(tmp_path / str(k), SAMPLES)
        before = sorted(world.tree(run.path))
        shard = sorted((run.path / "rows").iterdir())[0]
        data = shard.read_bytes()
        at = data.rindex(name)
        shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RunError, match="other content of the same size"):
            _ = Run.open(run.path).robust_accuracy
        with pytest.raises(RunError, match="other content of the same size"):
            Run.open(run.path).shards.check_hashes()
        with pytest.raises(RunError, match=shard.name):
            Writer.resume(run.path, world.manifest())
        assert sorted(world.tree(run.path)) == before
        # Without checksums, as earlier versions wrote it: the name of the column is missed, and nothing is deleted.
        reseal(run.path, checksums=False)
        refused = 0
        for found in re.finditer(name, data):
            at = found.start()
            shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            try:
                assert Run.open(run.path).robust_accuracy == run.robust_accuracy
                Writer.resume(run.path, world.manifest()).close()
            except RunError as error:
                refused += f"no column {name.decode()}" in str(error)
            assert sorted(world.tree(run.path)) == [n for n in before if n != LIST]
        assert refused


@pytest.mark.parametrize("checked", [True, False])
def test_adversarials_are_not_deleted_because_rows_forgot_them(world: Any, tmp_path: Path, checked: bool) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    for shard in (run.path / "rows").iterdir():
        table = pq.read_table(shard)
        at = table.column_names.index("adv_shard")
        files.write_rows(shard, table.set_column(at, "adv_shard", pa.nulls(len(table), pa.string())))
    reseal(run.path, checksums=checked)
    Writer.resume(run.path, world.manifest()).close()
    assert len(list((run.path / "adversarials").iterdir())) == 2


def test_a_changed_manifest_is_noticed(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    file = run.path / "manifest.json"
    text = file.read_text()
    for old, new in (('"finished": true', '"finished": false'), ('"count": 2', '"count": 1'), ('"sha256"', '"sha257"')):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(RunError, match="as Brinell wrote it"):
            Run.open(run.path)
    file.write_text(json.dumps(json.loads(text)))  # another layout of the same values
    assert Run.open(run.path).robust_accuracy == run.robust_accuracy


def test_the_list_of_another_run_is_noticed(world: Any, tmp_path: Path) -> None:
    for finished in (True, False):
        a, b = (world.run(tmp_path / f"{name}{finished}", SAMPLES, finished=finished) for name in "ab")
        shutil.copy(b.path / LIST, a.path / LIST)
        with pytest.raises(RunError, match="does not continue it"):
            Run.open(a.path)
        (a.path / LIST).unlink()
        with pytest.raises(RunError, match=r"2 shards, as the manifest says|other shards"):
            Run.open(a.path)


def test_a_foreign_shard_is_noticed(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    shard = sorted((run.path / "rows").iterdir())[0]
    shutil.copy(shard, run.path / "rows" / "00000009-aaaaaaaa.parquet")
    with pytest.raises(RunError, match="does not name"):
        Run.open(run.path)


class Killed(BaseException):
    """Stands for a kill."""


POINTS = ("adversarials", "rows", "list", "half a line", "listed")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_moment_loses_at_most_one_shard(
    world: Any, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.run(tmp_path / "r", SAMPLES, finished=False)
    rows = run.rows().num_rows
    table = world.table({7: "..x", 8: "."})

    def die(*_: Any) -> None:
        raise Killed

    def half(path: Path, known: Any, shard: str, listed: Any) -> None:
        line, _ = checksums.line_of(shard, listed, known.chain)
        with open(path / LIST, "ab") as file:
            file.write(line[: len(line) // 2])
        raise Killed

    with Writer.resume(run.path, world.manifest()) as w, monkeypatch.context() as patch, suppress(Killed):
        if point == "adversarials":
            patch.setattr(files, "write_adversarials", die)
        elif point == "rows":
            patch.setattr(files, "write_rows", die)
        elif point != "listed":
            patch.setattr(writer, "append_line", die if point == "list" else half)
        w.append(table, *world.adversarials(table))
    stored = point in POINTS[2:]
    assert Run.open(run.path).rows().num_rows == rows + stored * table.num_rows
    with Writer.resume(run.path, world.manifest()) as w:
        assert not Run.open(run.path).shards.unlisted
        w.update(finished=True)
    found = Run.open(run.path)
    found.shards.check_hashes()
    assert found.rows().num_rows == rows + stored * table.num_rows
    assert set(found.adversarials().ids.tolist()) == {0, 2, 4} | ({7} if stored else set())
    assert len(list((run.path / "adversarials").iterdir())) == 2 + stored


def test_a_run_of_an_earlier_version_stays_as_it_is(tmp_path: Path, golden: Run) -> None:
    copy = shutil.copytree(golden.path, tmp_path / "old")
    assert Run.open(copy).shards.listed is None
    with Writer.resume(copy, golden.manifest) as w:
        w.update(notes=["seen"])
    assert not (copy / LIST).exists() and "checksums" not in Run.open(copy).manifest
    assert str(Run.open(copy).robust_accuracy) == str(golden.robust_accuracy)


def test_damaged_files_without_checksums_are_typed_errors(world: Any, tmp_path: Path) -> None:
    """Every byte of the footer in turn: typed, or the same numbers, or a number that no checksum protects."""
    run = world.run(tmp_path / "r", SAMPLES)
    reseal(run.path, checksums=False)
    for shard in (*sorted((run.path / "rows").iterdir())[:1], *sorted((run.path / "adversarials").iterdir())[:1]):
        data = shard.read_bytes()
        for at in range(0, len(data), max(1, len(data) // 150)):
            shard.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
            try:
                opened = Run.open(run.path)
                assert str(opened)
                opened.adversarials()
            except RunError:
                pass  # every other error fails the test
        shard.write_bytes(data)


def test_sizes_are_compared_when_a_run_is_opened(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    for file in (*(run.path / "rows").iterdir(), *(run.path / "adversarials").iterdir()):
        data = file.read_bytes()
        os.truncate(file, len(data) - 1)
        with pytest.raises(RunError, match=f"with {len(data):,} bytes, got {len(data) - 1:,} bytes"):
            Run.open(run.path)
        file.write_bytes(data)
