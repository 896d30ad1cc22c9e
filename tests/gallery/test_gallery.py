"""The gallery: two evaluations attack the same function, the test tells them apart, and the exceptions are named."""

import json
from functools import cache

import pytest
import torch
from typer.testing import CliRunner

import brinell
from brinell.cli.main import app
from brinell.gallery import DEFENCES, Row, find, measure
from brinell.gallery.defences import CAUGHT, MISSED
from brinell.gallery.networks import HELD_OUT, fitted, images, learnt
from brinell.gallery.parts import Jpeg, Thermometer, Winners, cosines
from brinell.models.demo import DemoNet
from brinell.reliability.outcome import PASS

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = ["logit-scaling", "quantisation", "output-codes"]
SLOW_TO_BUILD = ("statistical-test",)
N = 8


@cache
def quick() -> dict[str, Row]:
    return {row.defence.name: row for row in measure(QUICK, N)}


@cache
def everything() -> dict[str, Row]:
    return {row.defence.name: row for row in measure(n=16)}


def test_there_are_enough_and_their_names_differ() -> None:
    assert len(DEFENCES) >= 13
    assert len({d.name for d in DEFENCES}) == len(DEFENCES)
    assert all(d.why for d in DEFENCES if d.expected == MISSED)


@pytest.mark.parametrize("name", [d.name for d in DEFENCES if d.name not in (*SLOW_TO_BUILD, "noise")])
def test_both_evaluations_attack_the_same_function(name: str) -> None:
    """A stronger attack may have other gradients, never other answers."""
    d, x = find(name), images(16).x
    a, b = d.original.build().forward(x).logits, d.stronger.build().forward(x).logits
    assert torch.equal(a, b)


def test_what_is_attacked_was_not_learnt() -> None:
    x, _ = learnt()
    seen = {bytes(row.numpy().tobytes()) for row in x}
    assert not any(bytes(row.numpy().tobytes()) in seen for row in images(HELD_OUT).x)


def test_a_fit_does_not_depend_on_the_global_generator() -> None:
    torch.manual_seed(1)
    a = fitted(DemoNet(), epochs=1)
    torch.manual_seed(2)
    b = fitted(DemoNet(), epochs=1)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_thermometer_counts_levels() -> None:
    x = torch.tensor([0.0, 0.25, 0.3, 1.0]).view(1, 1, 2, 2)
    assert Thermometer(4)(x).sum(1).flatten().tolist() == [0, 1, 2, 4]


def test_winners_keep_their_share() -> None:
    kept = Winners(0.25)(torch.arange(8.0).view(1, 8))
    assert kept.tolist() == [[0, 0, 0, 0, 0, 0, 6, 7]]


def test_the_transform_of_the_compression_is_orthonormal_and_vanishing_coarseness_changes_nothing() -> None:
    basis = cosines(7).double()
    assert torch.allclose(basis @ basis.T, torch.eye(7).double(), atol=1e-6)
    x = images(4).x
    assert torch.allclose(Jpeg(1e-6)(x), x, atol=1e-4)


@pytest.mark.parametrize("name", QUICK)
def test_the_flawed_evaluation_fails_and_the_stronger_one_passes(name: str) -> None:
    row = quick()[name]
    assert row.original.test is not None
    assert row.stronger.test is not None
    assert row.original.test.verdict == "failed"
    assert row.original.test.score < PASS <= row.stronger.test.score
    assert row.original.test.kappa == row.stronger.test.kappa
    assert row.stronger.robust.k < row.original.robust.k <= row.clean.k


def test_the_program_prints_the_table_and_json() -> None:
    runner = CliRunner()
    told = runner.invoke(app, ["gallery", "--only", "logit-scaling", "--n", "4", "--quiet"])
    assert told.exit_code == 0, told.output
    assert "logit-scaling" in told.stdout
    assert "failed" in told.stdout
    told = runner.invoke(app, ["gallery", "--only", "logit-scaling", "--n", "4", "--quiet", "--json"])
    (row,) = json.loads(told.stdout)
    assert row["caught"] is True
    assert row["stronger"]["test"]["score"] == 1.0
    assert row["original"]["robust_accuracy"]["n"] == 4


def test_an_unknown_defence_is_refused_with_the_known_ones() -> None:
    with pytest.raises(brinell.BrinellError, match="thermometer"):
        find("fortress")


@pytest.mark.slow
def test_at_least_eleven_are_caught() -> None:
    tested = [row for row in everything().values() if row.defence.tested]
    caught = [r for r in tested if r.caught and r.stronger.score.k > r.original.score.k]  # type: ignore[union-attr]
    assert len(tested) >= 13
    assert len(caught) >= 11


@pytest.mark.slow
@pytest.mark.parametrize("name", [d.name for d in DEFENCES])
def test_the_test_says_what_the_gallery_says(name: str) -> None:
    row = everything()[name]
    assert row.as_expected
    assert row.defence.expected == CAUGHT or row.defence.why


@pytest.mark.slow
@pytest.mark.parametrize("name", [d.name for d in DEFENCES])
def test_robust_accuracy_falls_with_the_stronger_attack(name: str) -> None:
    row = everything()[name]
    assert row.stronger.robust.k < row.original.robust.k
