from datetime import datetime, timezone

import pytest

from brinell.errors import InputError, RunError
from brinell.results.format.manifest import decode, differences, encode, lookup, new_manifest


def test_a_new_manifest_is_unfinished_and_dated_in_utc() -> None:
    manifest = new_manifest({"seed": 1}, {"torch": "2"})
    assert not manifest["finished"]
    created = datetime.fromisoformat(manifest["created"])
    assert abs((datetime.now(timezone.utc) - created).total_seconds()) < 5


def test_differences_are_found_at_every_depth() -> None:
    a = {"plan": {"stages": [{"steps": 1}, {"steps": 2}]}, "box": (0, 1), "only_a": {}, "same": [1, {"x": None}]}
    b = {"plan": {"stages": [{"steps": 1}, {"steps": 3}, {"steps": 4}]}, "box": [0, 1], "same": [1, {"x": None}]}
    assert differences(a, b) == {
        "only_a": ({}, "nothing"),
        "plan.stages[1].steps": (2, 3),
        "plan.stages[2].steps": ("nothing", 4),
    }
    assert differences({}, {}) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_only_plain_json_is_stored(value: object) -> None:
    with pytest.raises(InputError, match="plain, finite JSON"):
        encode({"identity": value})


@pytest.mark.parametrize("text", ["", '{"identity": {"se', "[]", '{"schema_version": 1}', '{"identity": 3}'])
def test_a_damaged_manifest_is_named(tmp_path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"readable JSON in .*manifest\.json"):
        decode(tmp_path)


@pytest.mark.parametrize("version", [2, None, "1"])
def test_a_later_version_asks_for_an_update(tmp_path, version: object) -> None:
    (tmp_path / "manifest.json").write_bytes(encode({"schema_version": version, "identity": {}}))
    with pytest.raises(RunError, match="Update Brinell"):
        decode(tmp_path)


def test_a_folder_without_manifest_is_no_run(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        with pytest.raises(RunError, match="no such file"):
            decode(path)


def test_lookup_survives_absent_parts() -> None:
    assert lookup({"a": {"b": 3}}, "a.b") == 3
    assert lookup({"a": 3}, "a.b.c") is None
