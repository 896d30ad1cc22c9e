"""A sample's outcome depends on its id and the seed: not on slots, batch, order, neighbours or workers."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

import brinell
from brinell.attacks import (
    APGD,
    FAB,
    FMN,
    PGD,
    Bisect,
    Descend,
    HopSkipJump,
    OnGrid,
    PooledStarts,
    SigmaZero,
    SmallerBall,
)  # fmt: skip
from brinell.core.start_pool import StartPool
from brinell.core.threat import threat
from brinell.ops import rng
from brinell.results.row_queries import INCIDENTAL

N = 40  # more than one block of rows
MODEL = brinell.wrap(brinell.models.demo.demo_net())
# These draw no noise (Descend and WarmDescend: none before their first success, with which they end here), so that
# neither seed nor id matters.
NOISELESS = (
    "ALMA",
    "CW",
    "DDN",
    "DeepFool",
    "Descend",
    "EAD",
    "FAB",
    "FGSM",
    "FMN",
    "PDGD",
    "PDPGD",
    "Refine",
    "MIFGSM",
    "TIFGSM",
    "SigmaZero",
    "SuperDeepFool",
    "WarmDescend",
)
DETECTORS = ("Alternating", "Joint", "Matching", "SelectivePGD")
EPS = {"Linf": 0.1, "L2": 1.5, "L1": 12.0}
# Whatever is exported is here by itself.
# Those that look at a detector have tests of their own.
ATTACKS = {n: getattr(brinell.attacks, n)() for n in brinell.attacks.__all__ if n not in DETECTORS}


def short(attack, steps: int):
    """Small budgets: some samples break and some do not."""
    if isinstance(attack, Bisect):
        return replace(attack, attack=replace(attack.attack, steps=steps), grow=3, halve=2)
    if isinstance(attack, Descend):
        return replace(attack, attack=replace(attack.attack, steps=steps), before=FMN(10 * steps), rounds=4)
    if isinstance(attack, OnGrid | SmallerBall):
        return replace(attack, attack=replace(attack.attack, steps=steps))
    if isinstance(attack, PooledStarts):
        return attack.with_steps(steps)
    if isinstance(attack, HopSkipJump):  # decisions alone need many questions
        return replace(attack, steps=20 * steps, first=8)
    if hasattr(attack, "targets"):
        attack = replace(attack, targets=2, again=2)
    return replace(attack, steps=steps) if hasattr(attack, "steps") else attack


CASES = {
    f"{norm}-{name}": (norm, a) for norm in EPS for name, a in ATTACKS.items() if norm in [n.name for n in a.norms]
}
# Each attack is tested in one norm here, in turn, and in the others in the longer runs; these in every norm.
IN_EVERY_NORM = ("APGD", "FAB", "Pursuit", "Square")
BY_NAME = {name: [case for case in CASES if case.split("-")[1] == name] for name in ATTACKS}
IN_TURN = {cases[k % len(cases)] for k, cases in enumerate(BY_NAME.values()) if cases}
QUICK = {case: v for case, v in CASES.items() if case in IN_TURN or case.split("-")[1] in IN_EVERY_NORM}
POOL = StartPool(torch.arange(7), rng.normal(rng.keys(5, torch.arange(7)), (1, 28, 28)).sign())
MORE = {
    "Linf-pooled starts": ("Linf", brinell.Restarts(PooledStarts(APGD(2, "margin"), POOL), 2)),
    "L2-targets x restarts": ("L2", brinell.Restarts(brinell.Targets(PGD(1, loss="minimum-margin"), k=2), 2)),
    "Linf-targeted FAB": ("Linf", brinell.Targets(FAB(1, targeted=True), k=2)),
    "L0-sigma-zero": ("L0", SigmaZero(3)),
    "Linf-probability margin": ("Linf", APGD(3, "probability-margin")),
    "L1-larger radii": ("L1", brinell.Restarts(APGD(3, larger_eps=True), 2)),
}


@pytest.fixture(scope="module")
def data():
    return brinell.data.load("demo", N)


def outcomes(problem: brinell.Problem, norm: str, stage, **options) -> pa.Table:
    """The whole table but the time it took, by sample."""
    table = brinell.attack(MODEL, problem, threat(norm, {**EPS, "L0": 20.0}[norm]), stage, **options)
    return table.drop_columns(["seconds"]).sort_by("sample_id").combine_chunks()


def part(problem: brinell.Problem, index: torch.Tensor) -> brinell.Problem:
    return brinell.Problem(problem.x[index], problem.y[index], problem.ids[index])


def same(a: pa.Table, b: pa.Table) -> None:
    for name in a.column_names:
        assert a[name].to_pylist() == b[name].to_pylist(), name


def alike(data: brinell.Problem, norm: str, stage, some: int, few: int) -> None:
    """Compare runs that differ in slots, order and company. Few slots cost many model calls: they see fewer samples."""
    n = len(data)
    whole = outcomes(data, norm, stage, slots=256)
    assert whole["sample_id"].to_pylist() == list(range(n))
    assert 0 < np.array(whole["broken"].to_pylist()).sum() < n, "all samples end alike: the test tests little"
    same(whole, outcomes(data, norm, stage, slots=n // 2))
    same(whole[:some], outcomes(data[:some], norm, stage, slots=7))
    same(whole[some : some + few], outcomes(data[some : some + few], norm, stage, slots=1))
    order = rng.uniform(rng.keys(3, torch.arange(n)), (1,))[:, 0].argsort()
    assert order.tolist() != list(range(n))
    halves = [outcomes(part(data, half), norm, stage) for half in (order[: n // 2 - 1], order[n // 2 - 1 :])]
    same(whole, pa.concat_tables(halves).sort_by("sample_id"))


@pytest.mark.parametrize(("norm", "attack"), QUICK.values(), ids=QUICK.keys())
def test_outcomes_do_not_depend_on_company(data, norm, attack):
    alike(data, norm, short(attack, 1 if attack.name == "fab" else 2), some=10, few=2)


@pytest.mark.parametrize(("norm", "stage"), MORE.values(), ids=MORE.keys())
def test_nor_with_targets_restarts_and_phases(data, norm, stage):
    alike(data, norm, stage, some=10, few=2)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "attack"), CASES.values(), ids=CASES.keys())
def test_nor_in_longer_runs(norm, attack):
    alike(brinell.data.load("demo", 300), norm, short(attack, 12), some=40, few=12)


@pytest.mark.parametrize("name", [n for n in ATTACKS if n not in NOISELESS])
def test_ids_and_seeds_do_matter(data, name):
    """If they did not, the test above would hold for attacks without any noise."""
    whole = outcomes(data[:16], "L2", short(ATTACKS[name], 2))
    reseeded = outcomes(data[:16], "L2", short(ATTACKS[name], 2), seed=1)
    other = outcomes(brinell.Problem(data.x[:16], data.y[:16], ids=range(100, 116)), "L2", short(ATTACKS[name], 2))
    for table in (reseeded, other):
        assert whole["best_loss"].to_pylist() != table["best_loss"].to_pylist()


@pytest.mark.parametrize("norm", EPS)
def test_runs_of_halves_merge_to_the_run_of_the_whole(data, norm, tmp_path):
    plan = brinell.plan([short(ATTACKS[n], 2) for n in ("APGD", "FAB", "FGSM", "PGD", "Pursuit", "Square")])

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
    assert np.array_equal(one.ids, two.ids) and np.array_equal(one.x, two.x) and len(one.ids) >= 4
    assert brinell.verify(merged, "demo", data[:40]).ok
