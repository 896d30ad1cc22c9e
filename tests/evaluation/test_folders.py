"""Where a Run is stored: by default in a folder named after the evaluation; evaluated twice, the Run is returned."""

from pathlib import Path
from typing import Any

import pytest

import brinell
from brinell.core.dataset import Problem
from brinell.errors import RunError
from brinell.results import Run, Writer, new_manifest
from brinell.results.format import folders
from brinell.results.format.folders import default_folder, default_name, stored_folder


@pytest.fixture(autouse=True)
def _in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PARENT", "runs")


def identity(**changes: Any) -> dict[str, Any]:
    return {
        "model": {"name": "demo", "fingerprint": "a"}, "data": {"name": "demo"}, "plan": {"name": "fast"},
        "threat": {"norm": "Linf", "eps": 8 / 255, "eps_text": "8/255"}, "seed": 0, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "demo-demo-linf-8_255-fast"),
        ({"threat": {"norm": "L2", "eps": 0.5}}, "demo-demo-l2-0.5-fast"),
        ({"threat": {"norm": "L2", "eps": [0.1, 0.2]}}, "demo-demo-l2-per_sample-fast"),
        ({"model": {"name": "../../etc/passwd"}}, "etc_passwd-demo-linf-8_255-fast"),
        ({"model": {"name": "naïve net*?<>|:"}}, "na_ve_net-demo-linf-8_255-fast"),
        ({"model": {"name": None}, "data": {"name": ".."}}, "model-_-linf-8_255-fast"),
        ({"model": {"name": "n" * 300}}, f"{'n' * 50}-demo-linf-8_255-fast"),
    ],
)
def test_names_are_file_names(changes: dict[str, Any], name: str) -> None:
    assert default_name(identity(**changes)) == name


def stored(folder: Path, **changes: Any) -> Path:
    Writer.create(folder, new_manifest(identity(**changes), {})).close()
    return folder


def test_folders_are_numbered_and_the_one_of_this_evaluation_is_found(tmp_path: Path) -> None:
    name = default_name(identity())
    assert default_folder(identity(), tmp_path) == tmp_path / name
    stored(tmp_path / name, seed=1)
    assert default_folder(identity(), tmp_path) == tmp_path / f"{name}-2"
    (tmp_path / f"{name}-2").mkdir()  # of something else
    assert default_folder(identity(), tmp_path) == tmp_path / f"{name}-3"
    mine = stored(tmp_path / f"{name}-12")
    assert default_folder(identity(), tmp_path) == stored_folder(identity(), tmp_path) == mine
    # A name does not make another evaluation, a model does.
    assert stored_folder(identity(data={"name": "demo", "fingerprint": "b"}), tmp_path) is None


def test_evaluated_twice_the_finished_run_is_returned(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def evaluate(seed: int = 0, **options: Any) -> Run:
        options = {"out": "auto", "progress": False, "name": "Mine", **options}
        return brinell.evaluate("demo", problem[:8], brinell.Linf("8/255"), "fgsm", seed=seed, **options)

    run = evaluate()
    assert run.path.parent == Path("runs") and run.path.name.startswith("Mine-") and run.path.name.endswith("-fgsm")
    assert run.identity.model.name == "Mine" and "Mine has a robust accuracy" in run.sentence()
    before = (run.path / "manifest.json").read_bytes()
    again = evaluate()
    assert again.path == run.path and (run.path / "manifest.json").read_bytes() == before
    assert evaluate(out=run.path).path == run.path
    assert evaluate(seed=1).path.name == f"{run.path.name}-2"
    with pytest.raises(RunError, match="differs in seed"):
        evaluate(seed=2, out=run.path)


def test_an_unfinished_default_folder_is_named_and_resumed(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def evaluate(**options: Any) -> Run:
        data, options = problem[:8], {"out": "auto", "progress": False, **options}
        return brinell.evaluate("demo", data, brinell.Linf("8/255"), "fgsm", **options)

    run = evaluate()
    with Writer.resume(run.path, run.manifest) as writer:
        writer.update(finished=False)
    with pytest.raises(RunError, match=rf"{run.path}.*--resume"):
        evaluate()
    again = evaluate(resume=True)
    assert again.path == run.path and again.finished
    # Nothing to resume is no error: it starts.
    assert brinell.evaluate(
        "demo", problem[:8], brinell.Linf("8/255"), "fgsm", out="auto", resume=True, seed=5, progress=False
    ).finished
