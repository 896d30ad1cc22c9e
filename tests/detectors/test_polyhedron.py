"""Attacks on linear classifiers with linear detectors: a linear program says what exists, and they find just that."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

import brinell
from brinell.attacks import APGD, PGD, Alternating, Joint, Matching, SelectivePGD, Square
from brinell.core.references import References
from brinell.core.threat import threat
from brinell.ops import rng

pytestmark = pytest.mark.usefixtures("unchecked")

WORLDS = [("Linf", 2, 0), ("Linf", 3, 1), ("L1", 2, 0), ("L1", 3, 1)]
EVERY_WORLD = pytest.mark.parametrize(("norm", "classes", "seed"), WORLDS)
N = 16
REFERENCES = References(torch.arange(3), 2 * torch.eye(3))
ATTACKS = {
    "alternating": Alternating(30),
    "joint": Joint(APGD(15, "margin")),
    "joint-min": Joint(APGD(15, "margin"), how="min"),
    "joint-sum": Joint(PGD(15), how="sum"),
    "joint-square": Joint(Square(40)),
    "selective": SelectivePGD(15),
    "orthogonal": SelectivePGD(30, orthogonal=True),
    "match": Matching(15, references=REFERENCES),
}
TARGETED = brinell.Targets(Alternating(loss="minimum-margin"))


def broken(g, norm: str, share: float, part) -> np.ndarray:
    """Which samples fall at this multiple of the smallest radius at which anything can."""
    eps = threat(norm, g.distance(norm) * share)
    return np.array(brinell.attack(g.classifier, g.problem, eps, part)["broken"].to_pylist())


@EVERY_WORLD
def test_the_detector_matters_here(guarded, norm, classes, seed):
    """Without it all samples fall where with it none can; an attack that does not look at it finds next to nothing."""
    g = guarded(norm, classes, seed=seed)
    alone = threat(norm, g.distance(norm) * 0.99)
    blind = brinell.attack(g.world.classifier, g.problem, alone, APGD(50, "margin"))
    assert all(blind["broken"].to_pylist())
    assert broken(g, norm, 1.05, APGD(50, "margin")).sum() <= 1


@EVERY_WORLD
def test_alternating_projections_find_what_exists(guarded, norm, classes, seed):
    g = guarded(norm, classes, seed=seed)
    assert broken(g, norm, 1.05, TARGETED).mean() >= 0.99
    assert not broken(g, norm, 0.99, TARGETED).any()


@EVERY_WORLD
def test_selective_pgd_needs_some_room(guarded, norm, classes, seed):
    assert broken(guarded(norm, classes, seed=seed), norm, 1.5, SelectivePGD()).mean() >= 0.99


def test_the_published_steps_find_most_with_room(guarded):
    """Orthogonal steps in L1; in Linf they and joint losses, whose steps forget the coordinates' worth, find little."""
    g = guarded("L1", 2, seed=0)
    assert broken(g, "L1", 1.5, SelectivePGD(orthogonal=True)).mean() >= 0.9


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize(("norm", "classes", "seed"), [("Linf", 3, 1), ("L1", 3, 1)])
def test_nothing_is_found_where_nothing_exists(guarded, name, norm, classes, seed):
    g = guarded(norm, classes, seed=seed)
    assert not broken(g, norm, 0.99, ATTACKS[name]).any()


@pytest.mark.slow
def test_the_plan_as_a_whole(guarded):
    g = guarded("Linf", 3, seed=1)
    for share, fall in ((0.99, 0), (1.05, N)):
        run = brinell.evaluate(
            g.classifier, g.problem, threat("Linf", g.distance("Linf") * share), "detector", progress=False
        )
        assert N - run.robust_accuracy.k == fall
        assert run.verdict.level == "upper bound" and "no ensemble against detectors" in str(run.verdict)


def test_the_inverted_model_turns_the_polyhedron_round(guarded):
    """Rejected and misclassified: the half-space on the other side of the detector, with a distance of its own."""
    g = guarded("Linf", 2, seed=0)
    other = replace(g, slope=-g.slope, level=-g.level)
    e = other.distance("Linf")
    model, t = brinell.models.inverted(g.classifier), [threat("Linf", e * share) for share in (0.99, 1.05)]
    # The clean inputs are accepted by the detector, so that its opposite rejects them: nobody is right at first.
    run = brinell.evaluate(model, g.problem, t[1], Alternating(), progress=False)
    assert run.clean_accuracy.k == 0
    few, many = (np.array(brinell.attack(model, g.problem, v, Alternating())["broken"].to_pylist()) for v in t)
    assert not few.any() and many.mean() >= 0.99


# -------------------------------------------------------------------------------------------------------- invariance


def outcomes(g, index: torch.Tensor, part, slots: int | None = None) -> pa.Table:
    problem = brinell.Problem(g.world.x[index], g.world.y[index], ids=index)
    eps = threat("Linf", (g.distance("Linf") * 1.3)[index])
    table = brinell.attack(g.classifier, problem, eps, part, slots=slots)
    return table.drop_columns(["seconds"]).sort_by("sample_id").combine_chunks()


@pytest.mark.parametrize("name", ATTACKS)
def test_outcomes_do_not_depend_on_company(guarded, name):
    g = guarded("Linf", 3, seed=1)
    whole = outcomes(g, torch.arange(N), ATTACKS[name])
    order = rng.uniform(rng.keys(3, torch.arange(N)), (1,))[:, 0].argsort()
    halves = pa.concat_tables([outcomes(g, part, ATTACKS[name]) for part in (order[:7], order[7:])])
    for other in (outcomes(g, torch.arange(N), ATTACKS[name], slots=3), halves.sort_by("sample_id")):
        for column in whole.column_names:
            assert whole[column].to_pylist() == other[column].to_pylist(), column


def test_passes_are_counted(guarded):
    g = guarded("Linf", 3, seed=1)
    for part, backwards in ((Joint(APGD(5, "margin")), 12), (SelectivePGD(5), 12), (Joint(Square(5)), 0)):
        table = brinell.attack(g.classifier, g.problem, threat("Linf", 1e-4), part)
        queries = part.queries
        assert set(table["forwards"].to_pylist()) == {queries} and set(table["backwards"].to_pylist()) == {backwards}
