import sys

import pytest

from brinell.errors import InputError, RunError
from brinell.results import Run, Writer, merge
from brinell.results.format import files

WHOLE = {0: "..x", 1: "x", 2: ".xx", 3: "...", 4: ".u.", 5: "..x", 6: ".x"}


def part(ids: str) -> dict[int, str]:
    return {int(i): WHOLE[int(i)] for i in ids}


def content(run: Run) -> object:
    return run.rows().drop_columns(["adv_shard", "adv_row"])


def test_the_parts_make_the_whole(tmp_path, world) -> None:
    whole = world.run(tmp_path / "whole", WHOLE)
    world.run(tmp_path / "a", part("0246"), data__fingerprint="aa", data__n=4)
    world.run(tmp_path / "b", part("135"), data__fingerprint="bb", data__n=3)
    one = Run.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "one")
    two = merge([str(tmp_path / "b"), tmp_path / "a"], tmp_path / "two")
    for run in (one, two):
        assert content(run) == content(whole)
        assert run.adversarials().ids.tolist() == whole.adversarials().ids.tolist()
        assert (run.adversarials().x == whole.adversarials().x).all()
        assert run.finished
    assert one.manifest["identity"] == two.manifest["identity"]
    data = one.manifest["identity"]["data"]
    assert data["n"] == 7 and data["name"] == "toys"
    assert [source["fingerprint"] for source in data["sources"]] == ["aa", "bb"]
    assert [source["data"]["n"] for source in one.manifest["merged_from"]] == [4, 3]


def test_large_merges_are_written_in_several_shards(tmp_path, world, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["brinell.results.merge"], "SHARD_ROWS", 4)
    whole = world.run(tmp_path / "whole", WHOLE)
    run = merge([tmp_path / "whole"], tmp_path / "out")
    assert len(files.shards(tmp_path / "out")) == 5
    assert content(run) == content(whole)
    assert (run.adversarials().x == whole.adversarials().x).all()


def test_merging_in_steps_is_merging_at_once(tmp_path, world) -> None:
    for name in "135":
        world.run(tmp_path / name, part(name), data__fingerprint=name, data__n=1)
    paths = [tmp_path / name for name in "135"]
    merge(paths[:2], tmp_path / "first")
    steps, once = merge([tmp_path / "first", paths[2]], tmp_path / "steps"), merge(paths, tmp_path / "once")
    assert content(steps) == content(once)
    assert steps.manifest["identity"]["data"]["fingerprint"] == once.manifest["identity"]["data"]["fingerprint"]


def test_what_was_noticed_is_kept(tmp_path, world) -> None:
    check = {"name": "c", "level": "warn", "message": "odd"}
    for name, wall in (("1", 1.5), ("3", 2.0)):
        world.run(tmp_path / name, part(name), data__name=f"toys-{name}")
        with Writer.resume(tmp_path / name, world.manifest(data__name=f"toys-{name}")) as writer:
            writer.update(checks=[check], notes=["same", f"only {name}"], wall_seconds=wall, finished=name == "1")
    run = merge([tmp_path / "1", tmp_path / "3"], tmp_path / "out")
    assert run.checks == [check]
    assert run.manifest["notes"] == ["same", "only 1", "only 3"]
    assert run.manifest["wall_seconds"] == 3.5
    assert run.manifest["identity"]["data"]["name"] == "toys-1 + toys-3"
    assert not run.finished


def test_equal_repetitions_are_kept_once(tmp_path, world) -> None:
    world.run(tmp_path / "a", part("012"))
    world.run(tmp_path / "b", part("234"))
    run = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert run.rows().num_rows == sum(len(WHOLE[i]) for i in range(5))
    assert run.manifest["identity"]["data"]["n"] == 5


def test_conflicting_repetitions_are_refused(tmp_path, world) -> None:
    world.run(tmp_path / "a", {0: "..x"})
    world.run(tmp_path / "b", {0: "..."})
    with pytest.raises(RunError, match=r"broken, distance, verified .*: 0/two"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_evaluations_are_refused_by_field(tmp_path, world) -> None:
    world.run(tmp_path / "a", part("0"))
    world.run(tmp_path / "b", part("1"), seed=3, threat__eps=0.5)
    world.run(tmp_path / "c", part("2"), goal="hit")
    with pytest.raises(RunError, match=r"differ in goal, seed, threat\.eps\."):
        merge([tmp_path / name for name in "abc"], tmp_path / "out")


def test_nothing_to_merge(tmp_path) -> None:
    with pytest.raises(InputError, match="at least one"):
        merge([], tmp_path / "out")


def test_a_failed_merge_leaves_nothing(tmp_path, world) -> None:
    world.run(tmp_path / "a", part("02"))
    next(tmp_path.glob("a/adversarials/*")).unlink()
    with pytest.raises(RunError, match="no such file"):
        merge([tmp_path / "a"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_existing_run_is_not_overwritten(tmp_path, world) -> None:
    world.run(tmp_path / "a", part("02"))
    with pytest.raises(RunError, match="new or empty"):
        merge([tmp_path / "a"], tmp_path / "a")
    assert Run.open(tmp_path / "a").rows().num_rows == 6
