"""A killed evaluation goes on where it was, and ends as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brinell
from brinell import Linf, Problem, Run, RunError, evaluate, verify, wrap
from brinell.evaluation import run_stage
from brinell.models.demo import demo_net
from brinell.results import Writer

N, EPS, PLAN, SLOTS = 16, 0.1, "pgd20", 2
ARGUMENTS = f"evaluate --model demo --data demo --n {N} --eps {EPS} --plan {PLAN} --slots {SLOTS}".split()

# The program itself, with small shards; after so many it waits to be killed.
DRIVER = """
import os, signal, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make what they start in the background deaf to it
torch.set_num_threads(1)
from brinell.cli import main
from brinell.evaluation import run_stage
from brinell.results import Writer
run_stage.BATCH, append = 1, Writer.append
left = int(os.environ["SHARDS"])
def counted(self, table, *args):
    global left
    append(self, table, *args)
    left -= table.num_rows > 0
    if left == 0:
        time.sleep(600)
Writer.append = counted
main()
"""


@pytest.fixture
def start() -> "Iterator[Callable[..., subprocess.Popen[str]]]":
    """Starts the program, which stops after so many shards (0: never)."""
    started: list[subprocess.Popen[str]] = []

    def program(out: Path, shards: int, *more: str) -> "subprocess.Popen[str]":
        source = {"PYTHONPATH": str(Path(brinell.__file__).parents[1]), "OMP_NUM_THREADS": "1", "SHARDS": str(shards)}
        command = [sys.executable, "-c", DRIVER, *ARGUMENTS, "--out", str(out), *more]
        env = {**os.environ, **source}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield program
    for process in started:
        if process.poll() is None:
            kill(process)


def shards(out: Path) -> int:
    return len([p for p in (out / "rows").glob("*.parquet") if not p.name.startswith(".")])


def wait_for(process: "subprocess.Popen[str]", out: Path, count: int) -> None:
    for _ in range(6000):
        if shards(out) >= count:
            return
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.01)
    raise AssertionError(f"{shards(out)} shards, waited for {count}")


def kill(process: "subprocess.Popen[str]") -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 1)
        return again(tmp_path_factory.mktemp("reference") / "run")


def again(out: Path, **more: Any) -> Run:
    """The same evaluation in this process."""
    return evaluate(
        "demo", brinell.data.load("demo", N), Linf(str(EPS)), PLAN, out=out, slots=SLOTS, progress=False, **more
    )


def assert_same(run: Run, reference: Run, outcome: Any) -> None:
    assert run.finished
    assert outcome(run.rows()).equals(outcome(reference.rows()))
    assert run.rows()["forwards"].to_pylist() == reference.rows()["forwards"].to_pylist()
    assert run.rows()["backwards"].to_pylist() == reference.rows()["backwards"].to_pylist()
    a, b = run.adversarials(), reference.adversarials()
    assert np.array_equal(a.ids, b.ids)
    assert np.array_equal(a.x, b.x)
    assert run.robust_accuracy == reference.robust_accuracy


@pytest.mark.parametrize("moment", ["first shard", "middle", "near the end"])
def test_killed_and_resumed(moment: str, start: Any, reference: Run, tmp_path: Path, outcome: Any) -> None:
    total = shards(reference.path)
    assert total > 6
    count = {"first shard": 2, "middle": total // 2, "near the end": total - 1}[moment]
    out = tmp_path / "run"
    process = start(out, count)
    wait_for(process, out, count)
    kill(process)
    left = Run.open(out)
    assert not left.finished
    assert left.rows().num_rows < reference.rows().num_rows
    assert "upper bound" in str(left.verdict)
    before = {p.name: p.read_bytes() for p in (out / "rows").glob("*.parquet")}
    run = again(out, resume=True)
    assert {p.name: p.read_bytes() for p in (out / "rows").glob("*.parquet") if p.name in before} == before
    assert_same(run, reference, outcome)
    assert verify(run, "demo", brinell.data.load("demo", N)).ok


def test_killed_and_resumed_from_the_command_line(start: Any, reference: Run, tmp_path: Path, outcome: Any) -> None:
    out = tmp_path / "run"
    process = start(out, 1)
    wait_for(process, out, 1)
    # While it is writing, nobody else may.
    with pytest.raises(RunError, match="only writer"):
        Writer.resume(out, Run.open(out).manifest)
    kill(process)
    process = start(out, 0, "--resume", "--quiet")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_same(Run.open(out), reference, outcome)


def test_interrupted_by_hand(start: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, 2, "--quiet")
    wait_for(process, out, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_resuming_a_finished_run_changes_nothing(reference: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference.path, out)
    before = files(out)
    before.pop(".lock", None)
    second = again(out, resume=True)
    after = files(out)
    after.pop(".lock", None)
    assert after == before
    assert second.rows().equals(reference.rows())


def test_resume_of_nothing_starts(tmp_path: Path, problem: Problem) -> None:
    run = evaluate("demo", problem[:4], Linf(0.1), "fgsm", out=tmp_path / "new", resume=True, progress=False)
    assert run.finished


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"threat": Linf(0.2)}, "threat.eps"),
        ({"plan": "cw20"}, "plan.name"),
        ({"classifier": wrap(demo_net(), mean=0.1)}, "model.fingerprint"),
        ({"problem": brinell.data.load("demo", 9)}, "data.fingerprint"),
        ({"individual": True}, "individual"),
    ],
    ids=["seed", "eps", "plan", "model", "data", "individual"],
)
def test_resume_of_something_else_is_refused(
    change: dict[str, Any], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With or without resume, and before a pilot estimates the cost."""
    usual: dict[str, Any] = {
        "classifier": "demo",
        "problem": brinell.data.load("demo", 8),
        "threat": Linf(0.1),
        "plan": "fgsm",
    }
    evaluate(**usual, out=tmp_path / "run", progress=False)
    before = files(tmp_path)
    monkeypatch.delattr("brinell.evaluation.evaluate.announce_cost")
    for resume in (True, False):
        with pytest.raises(RunError) as caught:
            evaluate(**{**usual, **change}, out=tmp_path / "run", resume=resume)
        assert field in caught.value.got
    assert files(tmp_path) == before
