"""A bar on a terminal, plain lines elsewhere, nothing when told so."""

import io
from typing import Any

import pytest
from rich.console import Console

from brinell import Linf, Problem, Targets, attacks, evaluate
from brinell.engine.events import Progress
from brinell.evaluation import progress


def test_false_prints_nothing(problem: Problem, capfd: pytest.CaptureFixture[str]) -> None:
    evaluate("demo", problem[:8], Linf(0.1), "fgsm", progress=False)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""


@pytest.mark.parametrize("wanted", [None, True])
def test_elsewhere_plain_lines_on_standard_error(
    wanted: bool | None, problem: Problem, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate("demo", problem[:8], Linf(0.1), [attacks.PGD(steps=2), attacks.FGSM()], progress=wanted)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert "\r" not in err
    lines = err.splitlines()
    assert lines[0].startswith("pgd-ce: 8 samples, at most 3 passes each")
    assert any(line.startswith("pgd-ce: 8/8 finished") and line.endswith("done") for line in lines)
    assert any(line.startswith("fgsm") for line in lines)


def test_lines_come_now_and_then(problem: Problem, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    evaluate("demo", problem[:8], Linf(0.1), "pgd20", slots=2)
    assert "left" in capsys.readouterr().err


def test_notes_are_told(linear: Any, points: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net = linear(6, 2)
    evaluate(net, points(net, 4, 6), Linf(0.1), attacks.APGD(steps=1, loss="dlr"))
    assert "the dlr loss needs" in capsys.readouterr().err


def test_a_bar_on_a_terminal(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def console(stderr: bool = False) -> Console:
        assert stderr
        return Console(file=screen, force_terminal=True, width=100, legacy_windows=False)

    monkeypatch.setattr(progress, "Console", console)
    lefts: list[str] = []
    update = progress.Bar.update

    def spy(self: Any, task: Any, **fields: Any) -> None:
        lefts.append(fields["left"])
        update(self, task, **fields)

    monkeypatch.setattr(progress.Bar, "update", spy)
    evaluate("demo", problem[:12], Linf(0.1), "pgd20", slots=3)
    shown = screen.getvalue()
    assert "\x1b[" in shown
    assert "pgd-ce" in shown
    assert "━" in shown
    assert "broken" in shown
    assert lefts[-1] == ""
    assert any(text.startswith("about 0:") and text.endswith("left") for text in lefts)


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0:00"), (61.0, "1:01"), (3599.6, "1:00:00"), (7325.0, "2:02:05")])
def test_clock(seconds: float, text: str) -> None:
    assert progress._clock(seconds) == text


def test_out_of_memory_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from brinell.engine.events import Shrunk

    with progress.show_progress(None) as listener:
        listener(Shrunk(16))
    assert "out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attack", "slots"),
    [(attacks.PGD(steps=60), 8), (attacks.Square(steps=100), 32), (Targets(attacks.APGD(20, "dlr-targeted"), 3), 16)],
    ids=["few slots", "a slot for every sample", "attempts"],
)
def test_passes_are_counted_before_samples_finish(
    attack: Any, slots: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a tenth of a stage on, the number of passes that it expects is right within a factor of two."""
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    seen: list[Any] = []
    evaluate("demo", problem[:24], Linf(0.1), [attack], progress=seen.append, slots=slots, test=False)
    steps = [e for e in seen if isinstance(e, Progress)]
    total = steps[-1].passes
    assert total >= steps[-1].forwards and steps[-1].expected == total
    passes = [e.passes for e in steps]
    assert passes == sorted(passes) and len(set(passes)) > 20
    for e in steps:
        assert e.passes < total / 10 or 0.5 <= e.expected / total <= 2, (e, total)


def test_time_left_is_that_of_the_passes_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    estimate = progress.RemainingTime()
    estimate.start(10)
    now[0] += 20
    assert estimate.remaining(Progress("a", 0, 0, 0, passes=100, expected=400)) == "about 1:00 left"
    assert estimate.remaining(Progress("a", 5, 0, 0)) == "about 0:20 left"
