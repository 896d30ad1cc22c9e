"""Commands that are killed or fail to write can be called again and end with the same result."""

import errno
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from brinell import Curve, Linf, Problem, StorageError, data, evaluate, report, storage
from brinell.fetch import Wanted, obtain, sha256
from brinell.leaderboard.records import Record
from brinell.leaderboard.site import build
from brinell.leaderboard.site.pages import INDEX
from brinell.report.paper_text import labels, shared_paths
from brinell.results import Run, merge
from brinell.results.analyses import AnalysisReport

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
GOLDEN = Path(__file__).parent / "results" / "golden_run_v1"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def fortress(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("fortress_kill")
    for name in ("fortress_kill", "fortress_faults"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("unchecked")
def test_disturbed_commands_can_be_called_again(fortress: ModuleType) -> None:
    found = fortress.run(seed=1, count=12, commands=("merge", "submit", "data fetch"))
    assert sum(tried for _, tried, *_ in found) >= 12
    assert [detail for *_, details in found for detail in details] == []


def test_the_harness_notices_a_writer_that_is_not_atomic(fortress: ModuleType, tmp_path: Path) -> None:
    def careless() -> None:
        place = Path("out/counter.txt")
        with place.open("a") as file:
            file.write("once")

    world = tmp_path / "world"
    (world / "out").mkdir(parents=True)
    command = fortress.Command("careless", careless)
    known = fortress.reference(command, world)
    assert [line.split()[0] for line in known.operations] == ["open", "write"]
    assert fortress.attempt(command, world, known, "kill", 2) == "out/counter.txt differs"


class Killed(BaseException):
    """Ends a call as a kill would."""


def interrupted_at(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the renaming number `at`, and all changes of files after it, fail."""
    left, replace, unlink = [at], os.replace, Path.unlink

    def count(*args: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Killed
        replace(*args)

    def keep(self: Path, missing_ok: bool = False) -> None:
        if left[0] > 0:
            unlink(self, missing_ok)

    patch.setattr(os, "replace", count)
    patch.setattr(Path, "unlink", keep)


def parts(folder: Path) -> list[Path]:
    images = data.load("demo", 12)
    for name, part in (("a", slice(0, 6)), ("b", slice(6, 12))):
        piece = Problem(images.x[part], images.y[part], images.ids[part])
        evaluate("demo", piece, Linf(0.3), "fgsm", out=folder / name, progress=False)
    return [folder / "a", folder / "b"]


@pytest.mark.usefixtures("unchecked")
def test_a_killed_merge_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["brinell.results.merge"], "SHARD_ROWS", 8)
    places = parts(tmp_path)
    whole = merge(places, tmp_path / "whole")
    at = 0
    while True:
        at += 1
        out = tmp_path / f"out-{at}"
        with monkeypatch.context() as patch:
            interrupted_at(patch, at)
            try:
                merge(places, out)
                break
            except Killed:
                pass
        run = merge(places, out)
        assert run.finished and run.rows().drop_columns(["adv_shard", "adv_row"]).equals(
            whole.rows().drop_columns(["adv_shard", "adv_row"])
        )
        assert (run.adversarials().x == whole.adversarials().x).all()
        assert not [f for f in out.rglob(".*") if f.name.endswith(".tmp")]
    assert at > 6
    before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file() and f.name != ".lock"}
    merge(places, out)  # already done
    assert before == {f: f.read_bytes() for f in out.rglob("*") if f.is_file() and f.name != ".lock"}
    with pytest.raises(Exception, match="new or empty folder, or the result of the same merge") as caught:
        merge(places[:1], out)
    assert "resume" not in str(caught.value)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_killed_site_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(out: Path) -> None:
        build([GOLDEN], out=out, with_published=False)

    call(tmp_path / "whole")
    whole = everything(tmp_path / "whole")
    for at in range(1, len(whole) + 2):
        out = tmp_path / f"site-{at}"
        with monkeypatch.context() as patch:
            interrupted_at(patch, at)
            with pytest.raises(Killed):
                call(out)
        call(out)
        assert everything(out) == whole
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".notes").write_text("mine")
    with pytest.raises(Exception, match="holds other files"):
        call(mine)


def test_an_old_site_that_is_killed_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "site"
    Record("d", "Linf", "m", eps="0.1", clean=1.0, autoattack=1.0).write(tmp_path / "records")
    build(records=tmp_path / "records", out=out, with_published=False)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 3)
        with pytest.raises(Killed):
            build([GOLDEN], out=out, with_published=False)
    assert "d-Linf-eps-0.1.html" in json.loads((out / INDEX).read_text())["files"]
    build([GOLDEN], out=out, with_published=False)
    assert not (out / "d-Linf-eps-0.1.html").exists()


def test_one_bad_record_does_not_stop_the_site(tmp_path: Path) -> None:
    good = Record("d", "Linf", "good", eps="0.1", clean=1.0, autoattack=1.0).write(tmp_path / "records")
    for name, text in {"cut": good.read_text()[:40], "nan": good.read_text().replace('"1.00"', '"nan"')}.items():
        good.with_name(f"{name}.json").write_text(text)
    with pytest.warns(UserWarning, match="left out") as caught:
        site = build(records=tmp_path / "records", out=tmp_path / "site", with_published=False)
    assert site.boards == {"d-Linf-eps-0.1": 1} and len(caught) == 2
    assert any("cut.json" in str(w.message) for w in caught)


def test_a_read_only_run_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = data.load("demo", 4)
    evaluate("demo", images, Linf(0.3), "fgsm", out=tmp_path / "run", progress=False)
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StorageError, match="Make the folder writable"):
        evaluate("demo", images, Linf(0.3), "fgsm", out=tmp_path / "run", resume=True, progress=False)
    assert Run.open(tmp_path / "run").finished


def test_what_killed_analyses_and_downloads_left_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "ABANDONED_SECONDS", -1.0)
    run = tmp_path / "run"
    shutil.copytree(GOLDEN, run)
    left = run / "analyses" / ".fairness.json.0.tmp"
    left.parent.mkdir()
    left.write_text("half")
    AnalysisReport("fairness", "Fairness", "fair").save(run)
    assert [file.name for file in left.parent.iterdir()] == ["fairness.json"]
    file = tmp_path / "weights.bin"
    file.write_bytes(b"weights")
    wanted = Wanted("weights", file, (), "weights.bin", f"sha256:{sha256(file)}")
    obtain(wanted, lambda path: None)
    assert wanted.lock.read_text().strip() == sha256(file)


def test_reports_have_no_paths_of_this_machine(tmp_path: Path) -> None:
    places = [tmp_path / "x" / "run", tmp_path / "y" / "run"]
    for place in places:
        shutil.copytree(GOLDEN, place)
    runs = [Run.open(place) for place in places]
    assert shared_paths(runs) == ["x/run", "y/run"]
    assert len(set(labels(runs))) == 2
    for ending in ("html", "md", "tex", "json", "csv", "xml"):
        for some in (runs, runs[:1]):
            text = report.write(some, tmp_path / f"report.{ending}").read_text()
            assert str(tmp_path) not in text, ending
    gated = report.text(runs, "junit", fail_under=99.0)
    assert str(tmp_path) not in gated and "robust accuracy" in gated


def test_files_of_curves_have_no_paths_of_this_machine(tmp_path: Path) -> None:
    curve = Curve("L2", np.array([4, 7]), np.array([0.5, np.inf]), "mine", path=tmp_path / "curve" / "0-L2")
    assert curve.to_json()["path"] == str(tmp_path / "curve" / "0-L2")
    assert curve.to_json(tmp_path / "curve")["path"] == "0-L2"
    assert curve.to_json(tmp_path / "other")["path"] == "0-L2"
    curve.save(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["path"] == str(Path("curve") / "0-L2")
