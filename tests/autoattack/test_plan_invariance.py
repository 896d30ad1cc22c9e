"""Every plan in every norm: the rows do not depend on slots, order, parts, or an interruption."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell import L1, L2, Linf, Problem, Run
from brinell.evaluate import stages
from brinell.results import Writer

N = 14
THREATS = {"Linf": Linf(0.06), "L2": L2(0.35), "L1": L1(1.5)}
COMBINATIONS = [pytest.param(p, n, id=f"{p}-{n}") for p in brinell.plans() for n in THREATS]


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


def same(a: Run, b: Run, outcome: Any) -> None:
    assert outcome(a).equals(outcome(b))
    x, y = a.adversarials(), b.adversarials()
    assert np.array_equal(x.ids, y.ids)
    assert np.array_equal(x.x, y.x)


@pytest.mark.parametrize(("name", "norm"), COMBINATIONS)
def test_rows_are_the_same(
    name: str, norm: str, cut: Any, tiny: Any, images: Any, outcome: Any, quiet: Any, tmp_path: Path
) -> None:
    net = tiny()
    data, plan, threat = Problem(*images(net, N)), cut(name, steps=3, queries=8), THREATS[norm]

    def run(problem: Problem = data, **more: Any) -> Run:
        return quiet(net, problem, threat, plan, **more)

    reference = run()
    assert reference.finished
    assert not reference.unverified.num_rows
    for slots in (1, 7, 64):
        same(run(slots=slots), reference, outcome)

    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    same(run(Problem(data.x[order], data.y[order], data.ids[order]), slots=5), reference, outcome)

    halves = [run(data[:6], out=tmp_path / "a"), run(data[6:], out=tmp_path / "b")]
    same(Run.merge([h.path for h in halves], tmp_path / "merged"), reference, outcome)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "BATCH", 3)
        with pytest.MonkeyPatch.context() as inner, pytest.raises(Interrupted):
            interrupted(inner, 2)
            run(out=tmp_path / "torn", slots=3)
        torn = Run.open(tmp_path / "torn")
        assert not torn.finished
        assert 0 < torn.rows().num_rows < reference.rows().num_rows
        same(run(out=tmp_path / "torn", slots=4, resume=True), reference, outcome)


@pytest.mark.parametrize("norm", THREATS)
def test_the_small_problem_is_not_trivial(norm: str, cut: Any, tiny: Any, images: Any, quiet: Any) -> None:
    """What the test above compares: some samples fall, some stand, one is misclassified to begin with."""
    net = tiny()
    run = quiet(net, images(net, N), THREATS[norm], cut("autoattack-plus", steps=3, queries=8))
    assert run.clean_accuracy.k == N - 1
    assert 0 < run.robust_accuracy.k < N - 1


def test_every_stage_of_the_plans_was_cut(cut: Any) -> None:
    """The helper reaches every attack: no test here runs a full budget by mistake."""
    for name in brinell.plans():
        plan = cut(name)
        for s in (*plan.stages, *(plan.sparse_stages or ())):
            assert s.attack.queries * len(s.legs()) * s.eot <= 60
