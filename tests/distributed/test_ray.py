"""Real Ray workers: the same Runs as in one process, whoever is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import brinell
from brinell import Problem, Run, RunError
from brinell.distributed import Ray
from brinell.distributed.actor_pool import ActorPool
from brinell.results import Writer

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray
Evaluate = Callable[..., Run]
Same = Callable[[Run, Run], None]
PLAN = [brinell.attacks.FGSM(), brinell.attacks.PGD(steps=5)]
SOURCE = str(Path(brinell.__file__).parents[1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small cluster for the tests that do not care, since starting one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SOURCE)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def test_a_cluster_of_our_own_is_started_and_stopped(
    evaluate: Evaluate, assert_same: Same, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ours = ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED")
    before = [os.environ.get(name) for name in ours]
    run = evaluate(60, launch=Ray(workers=1))
    assert not ray.is_initialized()
    assert [os.environ.get(name) for name in ours] == before
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert_same(run, evaluate(60))
    assert [w["threads"] for w in run.manifest["workers"]] == [torch.get_num_threads()]


@pytest.mark.usefixtures("cluster")
class TestOnOneCluster:
    @pytest.mark.parametrize("unit", [None, 7, 50])
    def test_two_workers_and_any_units(self, evaluate: Evaluate, assert_same: Same, unit: int | None) -> None:
        assert_same(evaluate(100, PLAN, launch=Ray(workers=2, unit=unit)), evaluate(100, PLAN))
        assert ray.is_initialized(), "somebody else's connection stays"

    def test_audit_escalation_and_lower_precision(
        self, evaluate: Evaluate, assert_same: Same, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["brinell.evaluation.evaluate"], "needs_escalation", lambda *_: True)
        short, full = brinell.Stage(PLAN[0]), brinell.Stage(PLAN[1], share=0.25)
        same: dict[str, Any] = {
            "plan": brinell.Plan("mine", (short, full), strength="audited"),
            "audit": 0.3,
            "escalate": True,
            "precision": "bfloat16",
        }
        assert_same(evaluate(70, **same, launch=Ray(workers=2)), evaluate(70, **same))

    def test_streams_odd_ids_and_own_radii(self, evaluate: Evaluate, assert_same: Same, data: Any) -> None:
        problem, eps = data(90), torch.linspace(0.005, 0.08, 90)
        ids = torch.arange(90).flip(0) * 1013
        loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=16)
        same: dict[str, Any] = {"plan": PLAN, "threat": brinell.Linf(eps), "individual": True}
        run = evaluate(problem=Problem(loader, ids=ids), launch=Ray(workers=2, unit=20), **same)
        assert_same(run, evaluate(problem=Problem(problem.x, problem.y, ids=ids), **same))

    def test_resumed_by_others(
        self, evaluate: Evaluate, assert_same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append, count = Writer.append, 0

        def fragile(self: Any, *args: Any) -> None:
            nonlocal count
            count += 1
            if count > 3:
                raise KeyboardInterrupt
            append(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "append", fragile)
            with pytest.raises(KeyboardInterrupt):
                evaluate(90, PLAN, out=tmp_path / "r", launch=Ray(workers=2, unit=30))
        assert not Run.open(tmp_path / "r").finished
        run = evaluate(90, PLAN, out=tmp_path / "r", resume=True, launch=Ray(workers=1))
        assert_same(run, evaluate(90, PLAN))

    @pytest.mark.parametrize("moment", range(10))
    def test_a_worker_killed_at_any_moment_loses_nothing(
        self, evaluate: Evaluate, assert_same: Same, monkeypatch: pytest.MonkeyPatch, moment: int
    ) -> None:
        """Killed right after it joined, or after so many parts were stored, by a tenth of a second more or less."""
        killed: list[int] = []

        def kill(pool: ActorPool) -> None:
            if not killed and pool.environments:
                worker = sorted(pool.environments)[moment % len(pool.environments)]
                killed.append(pool.environments[worker]["pid"])
                os.kill(killed[0], signal.SIGKILL)

        append, assign, count, held = Writer.append, ActorPool.assign, 0, []

        def counting(self: Any, *args: Any) -> None:
            nonlocal count
            append(self, *args)
            count += 1
            # There are at least seven parts, how many more is a matter of time.
            if count == (moment + 1) // 2 and moment:
                threading.Timer(0.02 * moment, kill, held).start()

        def assigning(self: ActorPool, *args: Any) -> None:
            assign(self, *args)
            held[:] = [self]
            if moment == 0:
                kill(self)

        monkeypatch.setattr(Writer, "append", counting)
        monkeypatch.setattr(ActorPool, "assign", assigning)
        slow = nn.Sequential(Pause(), *small_layers()).eval()
        run = evaluate(120, PLAN, classifier=slow, launch=Ray(workers=2, unit=30))
        time.sleep(0.3)
        assert killed, "nobody was killed"
        monkeypatch.undo()
        assert_same(run, evaluate(120, PLAN, classifier=slow))

    def test_what_the_model_raises_is_raised_here(self, evaluate: Evaluate, tmp_path: Path) -> None:
        net = nn.Sequential(*small_layers(), Elsewhere(os.getpid())).eval()
        with pytest.raises(ZeroDivisionError, match="on a worker"):
            evaluate(40, PLAN, classifier=net, launch=Ray(workers=1))

    def test_a_model_that_cannot_travel_is_refused_before_anything_is_written(
        self, evaluate: Evaluate, tmp_path: Path
    ) -> None:
        net = nn.Sequential(*small_layers()).eval()
        net.lock = threading.Lock()  # type: ignore[assignment]
        with pytest.raises(brinell.ModelError, match="can be pickled") as caught:
            evaluate(40, PLAN, classifier=net, out=tmp_path / "never", launch=Ray(workers=1))
        assert "lock" in caught.value.got
        assert not (tmp_path / "never").exists()

    def test_gpus_that_are_not_there(self, evaluate: Evaluate, tmp_path: Path) -> None:
        if torch.cuda.is_available():
            pytest.skip("there are some")
        with pytest.raises(brinell.InputError, match="GPU"):
            evaluate(20, out=tmp_path / "never", launch=Ray(workers="gpu"))
        assert not (tmp_path / "never").exists()


def small_layers() -> list[nn.Module]:
    net = nn.Linear(48, 5)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) / 7)
    return [nn.Flatten(), net]


class Pause(nn.Module):
    """Takes time, so that there is some to kill in."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x


class Elsewhere(nn.Module):
    """Fails in any process but the first."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.pid:
            raise ZeroDivisionError("on a worker")
        return x


# ------------------------------------------------------------------------------------------ as a process of its own

DRIVER = """
import sys, time, torch
torch.set_num_threads(1)
from brinell.cli import main
from brinell.results import Writer
append = Writer.append
def slow(self, *args):
    append(self, *args)
    time.sleep(0.1)
Writer.append = slow
main()
"""
MODEL = """
import helper, torch, time
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = helper.net()
    def forward(self, x):
        time.sleep(0.01)
        return helper.scaled(self.inner(x))
def make():
    return Net().eval()
"""
HELPER = """
import torch
from torch import nn
def net():
    layer = nn.Linear(48, 5)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) / 7)
    return nn.Sequential(nn.Flatten(), layer)
def scaled(z):
    return z * 2
"""


@pytest.fixture
def files(tmp_path: Path, data: Any) -> list[str]:
    import numpy as np

    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text(HELPER)
    problem = data(100)
    np.savez(tmp_path / "data.npz", x=problem.x.numpy(), y=problem.y.numpy())
    return f"evaluate --model {tmp_path}/mine.py:make --data {tmp_path}/data.npz --eps 0.02 --plan pgd20".split()


def start(arguments: list[str], **variables: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", DRIVER, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> set[int]:
    """Every process that descends from this one."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if int(fields["PPid"]) == pid:
            found |= {int(fields["Pid"])} | children(int(fields["Pid"]))
    return found


def alive(pids: set[int]) -> set[int]:
    return {p for p in pids if Path(f"/proc/{p}/status").exists() and "zombie" not in _state(p)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "zombie"


@pytest.mark.parametrize("count", [1, 4])
def test_the_driver_killed_and_resumed(files: list[str], tmp_path: Path, assert_same: Same, count: int) -> None:
    out = tmp_path / "run"
    process = start([*files, "--workers", "2", "--slots", "8", "--out", str(out), "--quiet"])
    for _ in range(12000):
        if len(list((out / "rows").glob("[!.]*.parquet"))) >= count:
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    # Ray's own agents take their time; what matters are the processes that compute.
    family = {p for p in children(process.pid) if _command(p).startswith("ray::Worker")}
    assert family
    # While it is going on, nobody else may write.
    with pytest.raises(RunError, match="only writer"):
        Writer.resume(out, Run.open(out).manifest)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not Run.open(out).finished
    for _ in range(600):
        if not alive(family):
            break
        time.sleep(0.05)
    assert not alive(family), "workers outlive their driver"
    again = start([*files, "--workers", "2", "--slots", "8", "--out", str(out), "--resume", "--json"])
    printed, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert json.loads(printed)  # and nothing else on standard output
    assert "ray" not in errors.lower()
    alone = start([*files, "--slots", "8", "--out", str(tmp_path / "alone"), "--quiet"])
    assert alone.wait(timeout=300) == 0
    alone.communicate()
    assert_same(Run.open(out), Run.open(tmp_path / "alone"))
