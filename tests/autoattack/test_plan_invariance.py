"""Every plan in every norm: the rows do not depend on slots, order, parts, or an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell import L1, L2, Linf, Problem, Run
from brinell.evaluation import run_stage
from brinell.results import Writer

pytestmark = pytest.mark.usefixtures("unchecked")

N = 10
THREATS = {"Linf": Linf(0.018), "L2": L2(0.12), "L1": L1(0.35)}
# The plan for detectors needs a model that has one, and has tests of its own.
PLANS = [p for p in brinell.plans() if p != "detector"]
# The search of `exact` works in Linf alone.
COMBINATIONS = [pytest.param(p, n, id=f"{p}-{n}") for p in PLANS for n in THREATS if p != "exact" or n == "Linf"]
# One plan per kind of attack in every norm; the others in Linf or L1 in turn, and the slow test takes them all.
KINDS = ("pgd20", "apgd-ce", "apgd-t", "fab", "square")
IN_TURN = {p: "Linf" if k % 2 or p == "exact" else "L1" for k, p in enumerate(PLANS)}
QUICK = [c for c in COMBINATIONS if c.values[0] in KINDS or c.values[1] == IN_TURN[c.values[0]]]
AttackJob = Callable[..., Run]


class Interrupted(Exception):  # noqa: N818
    pass


def interrupted(patch: pytest.MonkeyPatch, k: int) -> None:
    """Let the writer fail after k shards."""
    append, left = Writer.append, [k]

    def failing(self: Writer, *args: Any) -> None:
        if not left[0]:
            raise Interrupted
        left[0] -= 1
        append(self, *args)

    patch.setattr(Writer, "append", failing)


def torn_and_resumed(job: AttackJob, data: Problem, out: Path, first: int, second: int) -> Run:
    """Evaluate with so many slots until the writer fails, then go on with another number of slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 3)
        with pytest.MonkeyPatch.context() as inner:
            interrupted(inner, 2)
            with pytest.raises(Interrupted):
                job(data, out=out, slots=first)
        torn = Run.open(out)
        assert not torn.finished
        assert torn.rows().num_rows > N
        return job(data, out=out, slots=second, resume=True)


def shuffled(data: Problem) -> Problem:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    return Problem(data.x[order], data.y[order], data.ids[order])


def same(a: Run, b: Run, outcome: Any) -> None:
    assert a.finished
    assert outcome(a).equals(outcome(b))
    x, y = a.adversarials(), b.adversarials()
    assert np.array_equal(x.ids, y.ids)
    assert np.array_equal(x.x, y.x)


@pytest.fixture
def world(tiny: Any, images: Any, cut: Any, quiet: Any) -> Callable[[str, str], tuple[Problem, AttackJob]]:
    """A small problem, and the evaluation of any part of it with a plan cut short."""

    def make(name: str, norm: str) -> tuple[Problem, AttackJob]:
        net = tiny()
        plan = cut(name, steps=3, queries=8)

        def job(problem: Problem, **more: Any) -> Run:
            return quiet(net, problem, THREATS[norm], plan, **more)

        return Problem(*images(net, N)), job

    return make


@pytest.mark.parametrize(("name", "norm"), QUICK)
def test_rows_are_the_same(name: str, norm: str, world: Any, outcome: Any, tmp_path: Path) -> None:
    """64 slots; two shuffled parts with 1 and 7 slots, merged; torn and resumed with other numbers of slots."""
    data, job = world(name, norm)
    reference = job(data, slots=64)
    assert not reference.unverified.num_rows
    mixed = shuffled(data)
    parts = [job(mixed[:4], slots=1, out=tmp_path / "a"), job(mixed[4:], slots=7, out=tmp_path / "b")]
    same(Run.merge([p.path for p in parts], tmp_path / "merged"), reference, outcome)
    same(torn_and_resumed(job, data, tmp_path / "torn", 3, 5), reference, outcome)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), COMBINATIONS)
def test_rows_are_the_same_one_by_one(name: str, norm: str, world: Any, outcome: Any, tmp_path: Path) -> None:
    """Each of these alone."""
    data, job = world(name, norm)
    reference = job(data)
    for slots in (1, 7, 64):
        same(job(data, slots=slots), reference, outcome)
    same(job(shuffled(data)), reference, outcome)
    halves = [job(data[:6], out=tmp_path / "a"), job(data[6:], out=tmp_path / "b")]
    same(Run.merge([h.path for h in halves], tmp_path / "merged"), reference, outcome)
    same(torn_and_resumed(job, data, tmp_path / "torn", 3, 3), reference, outcome)


@pytest.mark.parametrize("norm", THREATS)
def test_the_small_problem_is_not_trivial(norm: str, world: Any) -> None:
    """What the tests above compare: some samples fall, some stand, one is misclassified to begin with."""
    data, job = world("autoattack-plus", norm)
    run = job(data)
    assert run.clean_accuracy.k == N - 1
    assert 0 < run.robust_accuracy.k < N - 1


def test_every_stage_of_the_plans_was_cut(cut: Any) -> None:
    """The helper reaches every attack: no test here runs a full budget by mistake."""
    for name in brinell.plans():
        plan = cut(name)
        assert not plan.any_stage(lambda s: s.attack.queries * len(s.attempts()) * s.eot > 64)
