"""Models, data and devices that fail midway: the Run stays resumable, and the error names the sample or the call."""

import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import brinell
from brinell import Linf, Problem, Run
from brinell.engine.calls import Calls, lost_device
from brinell.engine.events import Note
from brinell.errors import InputError, ModelError, RunError
from brinell.evaluation import progress
from brinell.evaluation.run_stage import run_stage
from brinell.models.demo import demo_net

EPS, PLAN = Linf(0.1), "pgd20"


class Failing(nn.Module):
    """The demonstration network, which raises at one of its calls, or gives NaN to dark images."""

    def __init__(self, fail_at: int = 0, error: Exception | None = None, nan_below: float = 0.0) -> None:
        super().__init__()
        self.net, self.calls, self.fail_at, self.nan_below = demo_net(), 0, fail_at, nan_below
        self.error = error or RuntimeError("the socket is closed")
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.error
        dark = x.flatten(1).mean(1) < self.nan_below
        logits: Tensor = self.net(x)
        return torch.where(dark[:, None], torch.nan, logits)


def evaluated(model: Any, data: Any, out: Path, **options: Any) -> Run:
    return brinell.evaluate(model, data, EPS, PLAN, out=out, progress=False, slots=32, **options)


def calls_of_a_whole_run(data: Problem, out: Path) -> tuple[Run, int]:
    """Return a whole Run and the number of the last call of its attack; the checks after it make more calls."""
    net, last = Failing(), 0

    def counted(*given: Any) -> Iterator[Any]:
        nonlocal last
        yield from run_stage(*given)
        last = net.calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brinell.evaluation.run_plan.run_stage", counted)
        return evaluated(net, data, out), last


@pytest.mark.parametrize(
    "error", [RuntimeError("the socket is closed"), ValueError("bad state"), RuntimeError("CUDA error: device lost")]
)
def test_a_model_that_raises_midway_leaves_a_run_that_resumes_to_the_same_rows(
    error: Exception, problem: Problem, tmp_path: Path, outcome: Callable[[pa.Table], pa.Table]
) -> None:
    whole, calls = calls_of_a_whole_run(problem, tmp_path / "whole")
    at = calls - 4  # some samples have finished by then
    with pytest.raises(ModelError) as raised:
        evaluated(Failing(at, error), problem, tmp_path / "run")
    text = str(raised.value)
    assert f"{type(error).__name__}: {error}, in call " in text and "on the sample" in text
    assert "continue with resume=True" in text and str(tmp_path / "run") in text
    assert raised.value.__cause__ is error
    stored = Run.open(tmp_path / "run")
    assert not stored.finished and stored.rows().num_rows > len(problem)  # more than the clean rows
    resumed = evaluated(Failing(), problem, tmp_path / "run", resume=True)
    assert resumed.checks == whole.checks  # also those that ask for adversarials of the first session
    assert sorted(map(str, outcome(resumed.rows()).to_pylist())) == sorted(map(str, outcome(whole.rows()).to_pylist()))


def test_a_model_that_raises_in_a_check_after_the_attack_names_the_call(problem: Problem, tmp_path: Path) -> None:
    _, calls = calls_of_a_whole_run(problem, tmp_path / "whole")
    with pytest.raises(ModelError, match=r"the socket is closed, in call .*resume=True"):
        evaluated(Failing(calls + 2), problem, tmp_path / "run")
    assert evaluated(Failing(), problem, tmp_path / "run", resume=True).finished


@pytest.mark.parametrize("call", [1, 4])
def test_a_model_that_raises_while_a_run_is_verified_names_the_call(
    call: int, problem: Problem, tmp_path: Path
) -> None:
    run = evaluated(Failing(), problem, tmp_path / "run")
    with pytest.raises(ModelError, match="the socket is closed, in call"):
        brinell.verify(run, Failing(call), problem, rerun=0)


def test_the_error_names_the_samples_of_the_failing_call() -> None:
    calls = Calls(99)
    ids, message = torch.tensor([4, 8, 6, 6]), "in call 100 of the model, on the samples 4, 8, 6"
    with pytest.raises(ModelError, match=message), calls.call(ids):
        raise RuntimeError("boom")
    with pytest.raises(RuntimeError, match="boom"), calls.call(None):  # the checks say what is wrong themselves
        raise RuntimeError("boom")
    many = Calls(1, torch.arange(40))
    assert str(many).endswith("on the samples 0, 1, 2, 3, 4, 5, 6, 7 and 32 more")


def test_an_accelerator_error_outside_a_call_is_a_model_error(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA reports failures late, for example where a result is copied to the host."""

    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr("brinell.evaluation.run_stage._finish", lost)
    with pytest.raises(ModelError, match=r"CUDA error: unspecified launch failure, in call .*resume=True"):
        evaluated(demo_net(), problem[:8], tmp_path / "run")
    if hasattr(torch, "AcceleratorError"):
        assert lost_device(torch.AcceleratorError("gone"))


def test_a_model_with_nan_for_some_rows_is_evaluated_and_named(problem: Problem, tmp_path: Path) -> None:
    dark = problem.x.flatten(1).mean(1)
    run = evaluated(Failing(nan_below=float(dark.sort().values[5])), problem, tmp_path / "run")
    clean = [row for row in run.rows().to_pylist() if row["attack"] == "clean"]
    flagged = [row["sample_id"] for row in clean if "non-finite logits" in row["flags"]]
    assert set(problem.ids[dark < dark.sort().values[5]].tolist()) <= set(flagged) and run.finished
    assert "non-finite" in str(run.verdict)


class Source(Dataset):  # type: ignore[type-arg]
    def __init__(self, problem: Problem, bad: int | None) -> None:
        self.problem, self.bad = problem, bad

    def __len__(self) -> int:
        return len(self.problem)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i == self.bad:
            raise OSError("disk gone")
        return self.problem.x[i], int(self.problem.y[i])


@pytest.mark.parametrize("loader", [False, True])
def test_a_data_set_that_fails_midway_names_the_sample(
    loader: bool, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brinell.evaluation.context.CHUNK", 8)
    monkeypatch.setattr("brinell.core.dataset.READ", 8)  # the fingerprint reads as many

    def data(bad: int | None) -> Any:
        source = Source(problem[:24], bad)
        return DataLoader(source, batch_size=4) if loader else source

    with pytest.raises(InputError, match=r"OSError: disk gone, at sample 18. Correct the data set: dataset\[18\]"):
        evaluated(demo_net(), data(18), tmp_path / "run")
    assert set(Run.open(tmp_path / "run").rows()["sample_id"].to_pylist()) == set(range(16))
    assert evaluated(demo_net(), data(None), tmp_path / "run", resume=True).robust_accuracy.n == 24


def test_the_command_line_ends_with_code_2_and_can_be_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import torch\nfrom brinell.models.demo import demo_net\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.net, self.calls = demo_net(), 0\n"
        "    def forward(self, x):\n        self.calls += 1\n        if self.calls == {at}:\n"
        "            raise RuntimeError('boom')\n        return self.net(x)\n"
        "def make():\n    return Net().eval()\n"
    )
    file, out = tmp_path / "model.py", tmp_path / "run"
    command = ["brinell", "evaluate", "--model", f"{file}:make", "--data", "demo", "--n", "128", "--eps", "0.1"]
    command += ["--plan", "pgd20", "--out", str(out)]

    def called(at: int, *more: str) -> tuple[int, str]:
        file.write_text(code.format(at=at))
        monkeypatch.setattr(sys, "argv", [*command, *more])
        with pytest.raises(SystemExit) as end:
            import_module("brinell.cli.main").main()
        return int(end.value.code or 0), capsys.readouterr().err

    failed, text = called(80)
    assert failed == 2 and "RuntimeError: boom, in call" in text and "--resume" in text
    assert called(0, "--resume")[0] == 0


def test_a_model_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    calls = Calls()
    with progress.watched(calls, notes.append, every=0.02), calls.call(torch.tensor([3])):
        for _ in range(500):
            time.sleep(0.01)
            if notes:
                break
    assert notes and isinstance(notes[0], Note)
    assert "has not answered for" in notes[0].text and "call 1 of the model, on the sample 3" in notes[0].text


def test_an_interrupt_names_the_call(problem: Problem, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, calls = calls_of_a_whole_run(problem[:8], tmp_path / "whole")
    net = Failing(calls - 4)
    net.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        brinell.evaluate(net, problem[:8], EPS, PLAN, out=tmp_path / "run", slots=32)
    assert "interrupted in call" in capsys.readouterr().err.replace("\n", " ")
    assert not Run.open(tmp_path / "run").finished


class Scaled(nn.Module):
    """A network whose answers depend on an attribute, a hook, a buffer that is not saved, or the code of forward."""

    def __init__(self, gain: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.net, self.gain = demo_net(), gain
        self.register_buffer("shift", torch.full((10,), shift), persistent=False)
        self.shift: Tensor
        self.shift[0] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.net(x) + self.shift  # type: ignore[no-any-return]


class Other(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(1 - x)  # type: ignore[no-any-return]


Other.__name__ = Other.__qualname__ = "Scaled"


def hooked() -> nn.Module:
    net = Scaled()
    net.net.register_forward_hook(lambda module, args, out: out.flip(1))
    return net


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "attribute": lambda: Scaled(gain=0.5),
    "buffer": lambda: Scaled(shift=3.0),
    "hook": hooked,
    "forward": Other,
}


@pytest.mark.parametrize("other", OTHERS)
def test_resume_refuses_another_model_with_the_same_fingerprint(other: str, problem: Problem, tmp_path: Path) -> None:
    net = Scaled().eval()
    model = brinell.wrap(net)
    different = brinell.wrap(OTHERS[other]().eval())
    assert model.fingerprint == different.fingerprint
    calls = count_calls(net)
    evaluated(model, problem, tmp_path / "whole")
    calls.fail_at = calls.count * 2 - 8
    with pytest.raises(ModelError, match="boom"):
        evaluated(model, problem, tmp_path / "run")
    before = Run.open(tmp_path / "run").rows()
    with pytest.raises(RunError, match=r"gives sample \d+ class \d with margin .*, where the Run has class \d"):
        evaluated(different, problem, tmp_path / "run", resume=True)
    assert Run.open(tmp_path / "run").rows().equals(before)
    assert evaluated(model, problem, tmp_path / "run", resume=True).finished


class CallCounter:
    """A hook that counts calls and fails at one of them."""

    def __init__(self) -> None:
        self.count, self.fail_at = 0, 0

    def __call__(self, *_: Any) -> None:
        self.count += 1
        if self.count == self.fail_at:
            raise RuntimeError("boom")


def count_calls(net: nn.Module) -> CallCounter:
    counter = CallCounter()
    net.register_forward_hook(counter)
    return counter


def test_comparing_answers_costs_no_call(problem: Problem, tmp_path: Path) -> None:
    first = Failing()
    evaluated(first, problem, tmp_path / "run")
    again = Failing()
    evaluated(again, problem, tmp_path / "run", resume=True)
    new = Failing()
    evaluated(new, problem, tmp_path / "other")
    assert again.calls < new.calls  # the checks alone


def test_a_randomised_model_resumes(problem: Problem, tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = demo_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) + torch.randn(len(x), 10)  # type: ignore[no-any-return]

    evaluated(Noisy().eval(), problem[:8], tmp_path / "run")
    assert evaluated(Noisy().eval(), problem[:8], tmp_path / "run", resume=True).finished


def test_an_environment_that_differs_on_resume_is_named(problem: Problem, tmp_path: Path) -> None:
    _, calls = calls_of_a_whole_run(problem[:16], tmp_path / "whole")
    with pytest.raises(ModelError):
        evaluated(Failing(calls - 4), problem[:16], tmp_path / "run")
    net = Failing()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.backends.mkldnn.set_flags(False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        run = evaluated(net, problem[:16], tmp_path / "run", resume=True)
    finally:
        torch.set_default_dtype(before)
        torch.backends.mkldnn.set_flags(True)
    (note,) = [n for n in run.notes if n.startswith("Resumed in another environment")]
    for difference in ("onednn True, now False", "memory_format contiguous, now channels_last", "float32, now float64"):
        assert difference in note
    assert run.environment.raw["onednn"] and run.environment.raw["default_dtype"] == "float32"
