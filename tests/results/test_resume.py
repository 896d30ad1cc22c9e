"""What a Run holds of some samples, without reading the rest of it."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from brinell.errors import RunError
from brinell.results.format import files
from brinell.results.format.resume import NOTHING_STORED, StoredRows
from brinell.testing.runs import reseal

SAMPLES = {0: "..x", 1: "x", 2: ".u.", 10: ".xx", 11: "...", 12: ". x"}


def test_says_what_the_rows_say(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    known = StoredRows(run.path).of([*SAMPLES, 99])
    for k, attack in enumerate(("clean", "one", "two")):
        seen = [len(w) > k and w[k] != " " for w in SAMPLES.values()]
        fell = [len(w) > k and w[k] == "x" for w in SAMPLES.values()]
        assert known.seen(attack, [*SAMPLES, 99]) == [*seen, False]
        assert known.fell(attack, [*SAMPLES, 99]) == [*fell, False]
    assert known.hashes == {i: f"sha-{i}" for i in SAMPLES}


def test_reads_only_shards_that_can_have_the_samples(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredRows(world.run(tmp_path / "r", SAMPLES).path)
    assert sorted(stored.spans.values()) == [(0, 2), (10, 12)]
    read: list[str] = []
    whole = files.read_rows
    monkeypatch.setattr(files, "read_rows", lambda path, *more: read.append(path.name) or whole(path, *more))
    known = stored.of([11])
    assert len(read) == 1
    assert list(known.hashes) == [11]
    assert stored.of([5]).hashes == {}
    assert len(read) == 1
    assert stored.of([]) is NOTHING_STORED


def test_shards_without_statistics_are_read(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    for shard in files.shards(run.path):
        path = files.rows_file(run.path, shard)
        pq.write_table(files.read_rows(path), path, write_statistics=False)
    reseal(run.path)
    assert sorted(StoredRows(run.path).spans.values()) == [(0, 2), (10, 12)]


def test_another_input_under_the_same_id_is_refused(world: Any, tmp_path: Path) -> None:
    known = StoredRows(world.run(tmp_path / "r", SAMPLES).path).of([10, 11])
    known.check([10, 77], ["sha-10", "new"])
    with pytest.raises(RunError, match="the input of sample 11"):
        known.check([10, 11], ["sha-10", "other"])


def test_a_damaged_shard_is_named(world: Any, tmp_path: Path) -> None:
    run = world.run(tmp_path / "r", SAMPLES)
    path = next((run.path / "rows").glob("*.parquet"))
    path.write_bytes(b"nonsense")
    with pytest.raises(RunError, match=path.name):
        StoredRows(run.path)
