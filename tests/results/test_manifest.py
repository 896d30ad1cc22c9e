import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from brinell.errors import InputError, RunError
from brinell.results import Run
from brinell.results.format.manifest import Manifest, decode, differences, encode, new_manifest


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


RUNS = sorted(Path(__file__).parent.glob("golden*/**/manifest.json"))


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.parent.name)
def test_manifests_of_earlier_versions_are_read_and_written_back_alike(file: Path) -> None:
    stored = json.loads(file.read_text())
    manifest = decode(file.parent)
    identity = manifest.identity
    assert json.dumps(manifest.raw) == json.dumps(stored) == json.dumps(Run.open(file.parent).manifest)
    assert identity.criterion == "misclassify" and identity.plan.draws == 1 and manifest.images
    assert [stage.name for stage in identity.plan.stages] == [s["name"] for s in stored["identity"]["plan"]["stages"]]
    assert [finding.to_json() for finding in manifest.findings] == stored["checks"]


def test_keys_of_later_versions_survive() -> None:
    raw = {
        "identity": {"plan": {"stages": [{"name": "a", "later": 1}], "later": 2}, "later": 3, "seed": None},
        "checks": [{"name": "a", "level": "odd", "message": "b", "later": 4}],
        "later": {"x": 5},
    }
    manifest = Manifest.read(raw)
    assert manifest.raw == raw and manifest.identity.plan.stages[0].raw == {"name": "a", "later": 1}
    assert manifest.checks[0].raw["later"] == 4 and not manifest.finished


def test_absent_values_have_defaults() -> None:
    manifest = Manifest.read({"identity": {"plan": {"draws": None}}})
    plan = manifest.identity.plan
    assert (plan.name, plan.draws, plan.stages, manifest.identity.criterion) == ("unnamed", 1, (), "misclassify")
    assert manifest.images and not manifest.finished and manifest.wall_seconds is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"identity": {"seed": True}}, "seed as int, got True"),
        ({"identity": {"plan": 3}}, "plan as dict"),
        ({"identity": {"plan": {"stages": [{}]}}}, r"plan.stages\[0\].name as str, got none"),
        ({"identity": {"threat": {"eps": [1, "x"]}}}, "threat.eps as a list of int or float"),
        ({"identity": {}, "notes": [1]}, "notes as a list of str"),
        ({"identity": {}, "checks": [3]}, "checks as a list of dict"),
        ({"identity": {}, "finished": 1}, "finished as bool"),
        ({"identity": {"threat": {"eps": "8/255"}}}, "threat.eps as int or float or list"),
        ({"identity": {}, "resumed": [[]]}, "resumed as a list of dict"),
        ({"identity": {}, "probes": [{"attack": "a"}]}, r"probes\[0\].items as list, got none"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=f"a manifest with {message}"):
        Manifest.read(raw)
