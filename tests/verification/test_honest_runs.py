"""Honest Runs are never refused: interrupted, read in another order, or written in another way."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import Linf, Plan, Problem, RunError, Stage, evaluate, review, verify
from brinell.attacks import PGD, Square
from brinell.ops import rng
from brinell.results import Run, Writer
from brinell.results.format.manifest import Manifest

# By name: `brinell.evaluate` is a function.
SESSION = import_module("brinell.evaluation.context")
N = 12


def network() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    for i, p in enumerate(net.parameters()):
        p.data.copy_(rng.normal(rng.keys(3, torch.tensor([i])), tuple(p.shape))[0])
    return net.requires_grad_(False)


NET = network()
X = rng.uniform(rng.keys(5, torch.arange(N)), (1, 4, 4))
Y = NET(X).argmax(1)
PROBLEM = Problem(X, Y)


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let an evaluation die at its next writing after so many."""
    append, left = Writer.append, [after]

    def once(self: Writer, *args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        append(self, *args)

    monkeypatch.setattr(Writer, "append", once)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_run_is_of_its_data(after: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SESSION, "CHUNK", 4)  # as much data as several chunks hold
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(KeyboardInterrupt):
            evaluate(NET, PROBLEM, Linf(0.05), "fgsm", out=tmp_path / "run", progress=False)
    found = verify(tmp_path / "run", NET, PROBLEM)
    assert not found.failures, found
    assert [message[:23] for message in found.objections] == ["The Run is not finished"]
    evaluate(NET, PROBLEM, Linf(0.05), "fgsm", out=tmp_path / "run", resume=True, progress=False)
    assert verify(tmp_path / "run", NET, PROBLEM).ok


@pytest.mark.parametrize("made", ["forwards", "backwards"])
def test_the_order_of_the_data_is_no_fault(made: str, tmp_path: Path) -> None:
    turned = Problem(X.flip(0), Y.flip(0), PROBLEM.ids.flip(0))
    first, second = (PROBLEM, turned) if made == "forwards" else (turned, PROBLEM)
    run = evaluate(NET, first, Linf(0.05), "fgsm", out=tmp_path / "run", progress=False)
    for data in (first, second):
        assert verify(run, NET, data).ok
        assert review([run.path], NET, data, rerun=2).ok


def test_a_radius_may_be_written_with_spaces(tmp_path: Path) -> None:
    run = evaluate(NET, PROBLEM, Linf("8 / 255"), "fgsm", out=tmp_path / "run", progress=False)
    assert verify(run, NET, PROBLEM).ok


@pytest.mark.parametrize("audit", [0, 0.5])
def test_an_audit_of_another_size_is_no_other_plan(audit: float, tmp_path: Path) -> None:
    run = evaluate(NET, PROBLEM[:5], Linf(0.01), "fast", audit=audit, out=tmp_path / "run", progress=False)
    assert len(run.survivors()) > 2
    found = review([run.path], NET, PROBLEM[:5], rerun=2)
    assert found.ok, found
    assert found.submissions[0].alike == found.submissions[0].rerun == 2


def test_samples_with_names_that_single_layers_attacked_are_found_again(few: None) -> None:
    """A layer attacks some survivors alone; so does verification, unless it is asked for the full plan."""
    data = Problem(X, Y, ids=[f"picture-{i}.png" for i in range(N)], name="pictures")
    run = evaluate(NET, data, Linf(0.05), "fast", escalate=False, progress=False)
    attacked = run.rows()["attack"].to_pylist()
    assert attacked.count("again") > attacked.count("square")
    found = verify(run, NET, data, rerun=len(run.survivors()))
    assert found.ok and found.again is not None
    assert found.again.alike == found.again.ran > 0
    # All survivors, and some of the checks that a Run counts besides: no pass more than those of the Run.
    assert 0 < found.again.passes <= found.again.run_passes
    assert "of those of the Run" in str(found)
    deeper = verify(run, NET, data, rerun=2, full_plan=True).again
    assert deeper is not None and deeper.audited == deeper.ran == deeper.alike == 2
    assert deeper.passes > found.again.passes


class Rounds(nn.Module):
    """A randomised model whose draws are a list, in turn: itself, or right about whatever is near a clean input."""

    def __init__(self, itself: list[bool]) -> None:
        super().__init__()
        self.net, self.itself, self.calls = NET, itself, 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.itself[self.calls % len(self.itself)]:
            return self.net(x)
        nearest = torch.cdist(x.flatten(1), X.flatten(1)).argmin(1)
        return nn.functional.one_hot(Y[nearest], 3).float() * 5 - 1


def judged_by_five_passes(run: Run) -> Run:
    manifest = run.manifest
    manifest["identity"]["plan"]["draws"] = 5
    return Run(run.path, Manifest.read(manifest))


def test_an_adversarial_that_fools_fewer_passes_later_is_in_doubt_and_no_failure(tmp_path: Path) -> None:
    run = evaluate(NET, PROBLEM, Linf(0.05), "fgsm", out=tmp_path / "run", progress=False)
    broken = len(run.adversarials().ids)
    assert broken > 1
    run = judged_by_five_passes(run)
    seldom = verify(run, Rounds([True] + [False] * 7), PROBLEM)
    assert not seldom.failures
    assert (seldom.held, len(seldom.doubtful)) == (0, broken)
    assert any("randomised" in note for note in seldom.notes)


def test_what_never_fools_a_randomised_model_fails(tmp_path: Path) -> None:
    run = evaluate(NET, PROBLEM, Linf(0.05), "fgsm", out=tmp_path / "run", progress=False)
    run = judged_by_five_passes(run)
    never = verify(run, Rounds([False]), PROBLEM)
    assert set(never.failures.values()) == {"not misclassified"}
    assert not never.doubtful


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = NET
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + 0.5 * torch.randn(len(x), 3)


def test_a_run_of_a_randomised_model_is_not_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    chosen = Plan("noisy", (Stage(PGD(steps=5), eot=2),), draws=5)
    run = evaluate(Noisy(), PROBLEM, Linf(0.03), chosen, out=tmp_path / "run", progress=False)
    for _ in range(3):
        assert verify(run, Noisy(), PROBLEM).ok
        assert review([run.path], Noisy(), PROBLEM, rerun=0).ok


def test_samples_without_an_answer_do_not_stop_a_review(tmp_path: Path) -> None:
    class Mute(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x.flatten(1)[:, :1] > silent, torch.nan, NET(x))

    silent = float(X.flatten(1)[:, 0].median())
    run = evaluate(Mute().eval(), PROBLEM, Linf(0.001), "fgsm", out=tmp_path / "run", progress=False)
    found = [review([run.path], Mute().eval(), PROBLEM, rerun=1, seed=s) for s in range(6)]
    assert all(r.ok for r in found)
    assert {r.submissions[0].rerun for r in found} == {1}, "survivors have an answer"


def test_radii_of_nobody_are_not_given_to_others(tmp_path: Path) -> None:
    radii = torch.linspace(0.01, 0.2, N)
    run = evaluate(NET, PROBLEM, Linf(radii), "fgsm", out=tmp_path / "run", progress=False)
    earlier = {key: value for key, value in run.manifest.items() if key != "sample_ids"}
    run = Run(run.path, Manifest.read(earlier))  # as in Runs of earlier versions
    assert verify(run, NET, PROBLEM).ok
    with pytest.raises(RunError, match="in the order of the Run"):
        verify(run, NET, Problem(X.flip(0), Y.flip(0), PROBLEM.ids.flip(0)))


def test_one_sample_is_told_as_one() -> None:
    timid = Stage(PGD(steps=1, rel_step=1e-6, random_start=False))
    run = evaluate(NET, PROBLEM[:1], Linf(0.3), Plan("pair", (timid, Stage(Square(steps=300)))), progress=False)
    assert run.robust_accuracy.k == 0
    assert any("without broke 1 sample in" in text for text in run.verdict.evidence)
