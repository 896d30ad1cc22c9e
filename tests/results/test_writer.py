import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from brinell.errors import InputError, RunError
from brinell.results import Run, Writer
from brinell.results.format import files, lock
from brinell.results.format.shards import Shards
from brinell.storage import write_atomic

FOREVER = """
import sys, numpy as np
from tests_results_conftest import adversarials_of, make_manifest, table_of
from brinell.results import Writer
path, mode, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
writer = getattr(Writer, mode)(path, make_manifest())
print("ready", flush=True)
while True:
    table = table_of({start: "..x", start + 1: "..."})
    ids, x = adversarials_of(table)
    writer.append(table, ids, np.full((1, 300, 300), start, np.float32))
    print(start, flush=True)
    start += 2
"""


def start_writer(tmp_path: Path, folder: Path, mode: str, first: int) -> "subprocess.Popen[str]":
    """Start a process that appends shards until it is killed."""
    helper = tmp_path / "tests_results_conftest.py"
    helper.write_text((Path(__file__).parent / "conftest.py").read_text())
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", FOREVER, str(folder), mode, str(first)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def kill(process: "subprocess.Popen[str]") -> list[int]:
    """Kill a writer and return the shards it reported as stored."""
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    return [int(line) for line in output.split("\n")[:-1]]


def test_what_is_appended_is_read_back(tmp_path, world) -> None:
    table = world.table({3: "..x", 1: "xx ", 2: "..."})
    ids, x = world.adversarials(table)
    with Writer.create(tmp_path / "new" / "run", world.manifest()) as writer:
        writer.append(table, ids, x)
        writer.update(finished=True, notes=["a note"])
        assert writer.manifest["notes"] == ["a note"]
    run = Run.open(tmp_path / "new" / "run")
    assert run.finished and run.manifest["notes"] == ["a note"]
    assert run.rows()["sample_id"].to_pylist() == [1, 1, 2, 2, 2, 3, 3, 3]
    assert run.rows()["adv_row"].to_pylist() == [None, 1, None, None, None, None, None, 0]
    assert run.adversarials().ids.tolist() == [1, 3]
    assert run.adversarials().x[:, 0, 0].tolist() == [1.0, 3.25]


def test_shard_names_sort_in_the_order_of_writing(tmp_path, world) -> None:
    for mode in ("create", "resume"):
        with getattr(Writer, mode)(tmp_path, world.manifest()) as writer:
            for i in range(2):
                writer.append(world.table({10 * (mode == "resume") + i: "."}))
    (tmp_path / "rows" / "zz.parquet").write_bytes(next(tmp_path.glob("rows/*1-*.parquet")).read_bytes())
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.append(world.table({20: "."}))
    names = files.shards(tmp_path)
    assert [name.split("-")[0] for name in names] == [f"{i:08d}" for i in range(1, 6)] + ["zz"]
    assert Shards.open(tmp_path).all_rows()["sample_id"].to_pylist() == [0, 1, 10, 11, 20, 0]


def test_an_empty_table_makes_no_shard(tmp_path, world) -> None:
    with Writer.create(tmp_path, world.manifest()) as writer:
        writer.append(world.table({}))
    assert files.shards(tmp_path) == []


def test_adversarials_must_fit_the_rows(tmp_path, world) -> None:
    x = np.zeros((1, 2), np.float32)
    with Writer.create(tmp_path, world.manifest()) as writer:
        for table, ids, values, message in [
            (world.table({0: "..."}), [0], x, "of broken attack rows"),
            (world.table({0: "x  "}), [0], x, "of broken attack rows"),
            (world.table({0: ".x", 1: ".x"}), [1, 0], np.zeros((2, 2), np.float32), "order of the rows"),
            (world.table({0: ".x"}), [0], x.astype(np.float64), "in float64"),
            (world.table({0: ".x"}), [0, 1], x, "2 ids and 1"),
            (world.table({0: ".x"}), [0], None, "1 ids and 0"),
        ]:
            with pytest.raises(InputError, match=message):
                writer.append(table, np.array(ids), values)
    assert [name for name in world.tree(tmp_path) if "/" in name] == []


def test_an_adversarial_goes_to_the_verified_row(tmp_path, world) -> None:
    table = world.table({0: ".ux"})
    with Writer.create(tmp_path, world.manifest()) as writer:
        writer.append(table, np.array([0]), np.ones((1, 2), np.float32))
        table = world.table({1: ".ux"})
        writer.append(table, np.array([1, 1]), np.ones((2, 2), np.float32))
    assert Run.open(tmp_path).rows()["adv_row"].to_pylist() == [None, None, 0, None, 0, 1]


def test_the_identity_cannot_be_rewritten(tmp_path, world) -> None:
    with Writer.create(tmp_path, world.manifest()) as writer, pytest.raises(InputError, match="created, identity"):
        writer.update(identity={}, created="", finished=True)
    assert not Run.open(tmp_path).finished


def test_a_closed_writer_refuses(tmp_path, world) -> None:
    writer = Writer.create(tmp_path, world.manifest())
    writer.close()
    writer.close()
    for call in (lambda: writer.append(world.table({})), lambda: writer.update(finished=True)):
        with pytest.raises(RunError, match=r"Writer\.resume"):
            call()


def test_create_refuses_a_run_with_rows(tmp_path, world) -> None:
    world.run(tmp_path, {0: "...", 1: "x"})
    before = world.tree(tmp_path)
    with pytest.raises(RunError, match=r"which holds a Run\. Pass resume=True \(--resume\)"):
        Writer.create(tmp_path, world.manifest())
    assert world.tree(tmp_path) == before


@pytest.mark.parametrize("name", ["photo.png", "rows/x.parquet"])
def test_create_refuses_other_peoples_files(tmp_path, world, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(RunError, match="holds files but no Run"):
        Writer.create(tmp_path, world.manifest())
    with pytest.raises(RunError, match="holds files but no Run"):
        Writer.create(tmp_path / name, world.manifest())
    assert list(world.tree(tmp_path)) == [name]


def test_create_starts_a_run_without_rows_again(tmp_path, world) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".manifest.json.0.tmp").touch()
    Writer.create(tmp_path, world.manifest()).close()
    with Writer.create(tmp_path, world.manifest(seed=5)):
        assert Run.open(tmp_path).manifest["identity"]["seed"] == 5
        with pytest.raises(RunError, match="only writer"):
            Writer.create(tmp_path, world.manifest())


@pytest.mark.parametrize("exists", [True, False])
def test_a_failed_create_leaves_nothing(tmp_path, world, monkeypatch, exists: bool) -> None:
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
    with pytest.raises(InputError):
        Writer.create(folder, world.manifest(seed=object))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Writer.create(folder, world.manifest())
    assert folder.exists() == exists
    assert list(tmp_path.rglob("*")) == [folder] * exists


def test_resume_names_every_differing_field_and_writes_nothing(tmp_path, world) -> None:
    world.run(tmp_path, {0: "...", 1: "..x"})
    (tmp_path / ".lock").unlink()
    (tmp_path / "rows" / ".leftover.tmp").touch()
    before = world.tree(tmp_path)
    given = world.manifest(threat__eps=0.5, seed=9, model__name="other", data__new="y" * 300)
    with pytest.raises(RunError) as caught:
        Writer.resume(tmp_path, given)
    text = str(caught.value)
    assert "model.name (stored net, given other)" in text
    assert "seed (stored 0, given 9)" in text
    assert "threat.eps (stored 0.03137" in text and "given 0.5)" in text
    assert "data.new (stored nothing, given yyy" in text and len(text) < 700
    assert world.tree(tmp_path) == before


def test_resume_needs_a_run(tmp_path, world) -> None:
    with pytest.raises(RunError, match="no such file"):
        Writer.resume(tmp_path / "absent", world.manifest())
    assert not list(tmp_path.iterdir())


def test_resume_notes_another_environment_once(tmp_path, world) -> None:
    world.run(tmp_path, {0: "..."})
    for version in ("0.1.0", "0.2.0", "0.2.0"):
        manifest = {**world.manifest(), "environment": {"brinell": version}}
        Writer.resume(tmp_path, manifest).close()
    resumed = Run.open(tmp_path).manifest["resumed"]
    assert [entry["environment"] for entry in resumed] == [{"brinell": "0.2.0"}]


def test_a_crash_between_adversarials_and_rows_loses_one_shard(tmp_path, world, monkeypatch) -> None:
    run = world.run(tmp_path, {0: "..x", 1: "..."}, finished=False)
    before, rows = world.tree(tmp_path), run.rows()
    writer = Writer.resume(tmp_path, world.manifest())
    table = world.table({2: "..x"})
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_rows", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            writer.append(table, *world.adversarials(table))
    writer.close()
    (tmp_path / "rows" / ".half.parquet.0.tmp").write_bytes(b"PAR1")
    (tmp_path / ".manifest.json.0.tmp").write_bytes(b"{")
    assert len(list(tmp_path.glob("adversarials/*"))) == 2
    assert Run.open(tmp_path).rows() == rows
    with Writer.resume(tmp_path, world.manifest()) as writer:
        assert {k: v for k, v in world.tree(tmp_path).items() if k != ".lock"} == {
            k: v for k, v in before.items() if k != ".lock"
        }
        writer.append(table, *world.adversarials(table))
    assert Run.open(tmp_path).adversarials().ids.tolist() == [0, 2]


def test_an_interrupted_write_leaves_no_temporary_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomic(tmp_path / "file", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["rows", "adversarials"])
@pytest.mark.parametrize("keep", [0, 20, -40])
def test_a_truncated_shard_is_named(tmp_path, world, folder: str, keep: int) -> None:
    world.run(tmp_path, {0: "..x"})
    shard = next((tmp_path / folder).iterdir())
    shard.write_bytes(shard.read_bytes()[:keep])
    before = world.tree(tmp_path)
    with pytest.raises(RunError, match=shard.name):
        Run.open(tmp_path).adversarials()
    if folder == "rows":
        with pytest.raises(RunError, match=shard.name):
            Writer.resume(tmp_path, world.manifest())
        assert world.tree(tmp_path).keys() == before.keys()


def test_a_flipped_bit_is_noticed(tmp_path, world) -> None:
    world.run(tmp_path, {0: "..."})
    shard = next((tmp_path / "rows").iterdir())
    data = bytearray(shard.read_bytes())
    data[data.index(b"float32")] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(RunError, match=shard.name):
        Run.open(tmp_path).rows()


def test_a_second_writer_in_another_process_is_refused(tmp_path, world) -> None:
    folder = tmp_path / "run"
    process = start_writer(tmp_path, folder, "create", 0)
    try:
        with pytest.raises(RunError, match=f"held by process {process.pid}"):
            Writer.resume(folder, world.manifest())
    finally:
        kill(process)


def test_killed_writers_lose_nothing_they_reported(tmp_path, world) -> None:
    folder, stored = tmp_path / "run", []
    for i, delay in enumerate((0.05, 0.11, 0.2)):
        first = 100_000 * i  # whatever the last one had stored and not yet reported
        process = start_writer(tmp_path, folder, "resume" if folder.exists() else "create", first)
        time.sleep(delay)
        stored += kill(process)
    with Writer.resume(folder, world.manifest()):
        pass
    run = Run.open(folder)
    ids = set(run.rows()["sample_id"].to_pylist())
    assert set(stored) <= ids
    found = run.adversarials()
    assert set(found.ids.tolist()) == {i for i in ids if i % 2 == 0}
    assert (found.x == found.ids[:, None, None]).all()
    assert len(list(folder.glob("adversarials/*"))) == len(found.ids)
    assert not [file for file in folder.rglob("*") if file.suffix == ".tmp"]


def test_without_flock_a_lock_file_guards_the_folder(tmp_path, world, monkeypatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    with Writer.create(tmp_path, world.manifest()) as writer:
        writer.append(world.table({0: "..."}))
        with pytest.raises(RunError, match=f"held by process {os.getpid()}.*delete .*lock"):
            Writer.resume(tmp_path, world.manifest())
    assert not (tmp_path / ".lock").exists()
    Writer.resume(tmp_path, world.manifest()).close()


def test_a_lock_that_cannot_be_taken_is_not_leaked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lock.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    with pytest.raises(OSError, match="no locks"):
        lock.Lock(tmp_path)


def test_empty_folders_of_a_run_that_vanished_are_no_obstacle(world, tmp_path: Path) -> None:
    for name in ("rows", "adversarials"):
        (tmp_path / "run" / name).mkdir(parents=True)
    Writer.create(tmp_path / "run", world.manifest()).close()
    (tmp_path / "other" / "rows").mkdir(parents=True)
    (tmp_path / "other" / "rows" / "mine.txt").touch()
    with pytest.raises(RunError, match="holds files but no Run"):
        Writer.create(tmp_path / "other", world.manifest())
