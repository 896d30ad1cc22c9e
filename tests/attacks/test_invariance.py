"""A sample's outcome depends on its id and the seed: not on slots, batch, order, neighbours or the number of workers."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

import brinell
from brinell.attacks import APGD, FAB, PGD
from brinell.core.threat import threat
from brinell.results.outcome import INCIDENTAL

N = 70
EPS = {"Linf": 0.1, "L2": 1.5, "L1": 12.0}
# Whatever is exported is here by itself; budgets are cut so that some samples break and some do not.
ATTACKS = {name: getattr(brinell.attacks, name)() for name in brinell.attacks.__all__}
ATTACKS = {name: replace(a, steps=3) if hasattr(a, "steps") else a for name, a in ATTACKS.items()}
STAGES = {
    **ATTACKS,
    "Targets x Restarts": brinell.Restarts(brinell.Targets(PGD(2, loss="minimum-margin"), k=2), 2),
    "FAB targeted": brinell.Targets(FAB(2, targeted=True), k=2),
}
LARGER = {"L1": brinell.Restarts(APGD(4, larger_eps=True), 2)}
CASES = [(n, s) for n in EPS for s in STAGES] + [("L1", "larger radii")]


@pytest.fixture(scope="module")
def data():
    return brinell.data.load("demo", N)


def outcomes(problem: brinell.Problem, norm: str, stage, **options) -> pa.Table:
    """The whole table but the time it took, by sample."""
    table = brinell.attack("demo", problem, threat(norm, EPS[norm]), stage, **options)
    return table.drop_columns(["seconds"]).sort_by("sample_id").combine_chunks()


def part(problem: brinell.Problem, index: torch.Tensor) -> brinell.Problem:
    return brinell.Problem(problem.x[index], problem.y[index], problem.ids[index])


def same(a: pa.Table, b: pa.Table) -> None:
    for name in a.column_names:
        assert a[name].to_pylist() == b[name].to_pylist(), name


@pytest.mark.parametrize(("norm", "name"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_outcomes_do_not_depend_on_company(data, norm, name):
    stage = LARGER[norm] if name == "larger radii" else STAGES[name]
    whole = outcomes(data, norm, stage, slots=256)
    assert whole.num_rows == N and whole["sample_id"].to_pylist() == list(range(N))
    broken = np.array(whole["broken"].to_pylist())
    assert 0 < broken.sum() < N, "all samples end alike: the test tests little"
    same(whole, outcomes(data, norm, stage, slots=64))
    # Fewer slots than samples cost one model call per slot and step, so these look at some of the samples.
    same(whole[:20], outcomes(data[:20], norm, stage, slots=7))
    same(whole[20:23], outcomes(data[20:23], norm, stage, slots=1))
    shuffled = torch.argsort(brinell.ops.rng.uniform(brinell.ops.rng.keys(3, torch.arange(N)), (1,))[:, 0])
    assert shuffled.tolist() != list(range(N))
    same(whole, outcomes(part(data, shuffled), norm, stage, slots=33))
    same(whole, pa.concat_tables([outcomes(p, norm, stage) for p in (data[:31], data[31:])]))


@pytest.mark.parametrize("name", [n for n, a in ATTACKS.items() if n not in ("FGSM", "FAB")])
def test_ids_and_seeds_do_matter(data, name):
    """If they did not, the test above would hold for attacks without any noise."""
    whole = outcomes(data[:16], "L2", ATTACKS[name])
    reseeded = outcomes(data[:16], "L2", ATTACKS[name], seed=1)
    other = outcomes(brinell.Problem(data.x[:16], data.y[:16], ids=range(100, 116)), "L2", ATTACKS[name])
    for table in (reseeded, other):
        assert whole["best_loss"].to_pylist() != table["best_loss"].to_pylist()


@pytest.mark.parametrize("norm", EPS)
def test_runs_of_halves_merge_to_the_run_of_the_whole(data, norm, tmp_path):
    plan = brinell.plan([ATTACKS[n] for n in ATTACKS if n != "RandomSearch"])

    def evaluate(problem: brinell.Problem, name: str) -> brinell.Run:
        out = tmp_path / name
        return brinell.evaluate("demo", problem, threat(norm, EPS[norm]), plan, out=out, progress=False)

    whole = evaluate(data[:40], "whole")
    evaluate(data[:17], "first")
    backwards = torch.arange(39, 16, -1)
    evaluate(part(data, backwards), "second")
    merged = brinell.Run.merge([tmp_path / "second", tmp_path / "first"], tmp_path / "merged")
    a, b = (run.rows().drop_columns(list(INCIDENTAL)) for run in (whole, merged))
    same(a, b)
    assert 0 < whole.robust_accuracy.value < 1 and str(whole.robust_accuracy) == str(merged.robust_accuracy)
    one, two = whole.adversarials(), merged.adversarials()
    assert np.array_equal(one.ids, two.ids) and np.array_equal(one.x, two.x) and len(one.ids) > 5
    assert brinell.verify(merged, "demo", data[:40]).ok
