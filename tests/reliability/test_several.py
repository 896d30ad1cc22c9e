"""Several attacks on the same classifiers: each test is the one it would have alone, and sweeps change one thing."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.reliability.conftest import fixed, mlp, samples
from typer.testing import CliRunner

import brinell
from brinell import test_attack  # by name: pytest must not take it for a test
from brinell.analysis.plot import plot
from brinell.attacks import APGD, PGD
from brinell.cli.main import app
from brinell.reliability import AttackTests, test_attacks
from brinell.reliability.binarization import several as several_module
from brinell.reliability.binarization import test as binarization
from brinell.reliability.binarization.test import run_tests

LINF = brinell.Linf(0.1)
OPTIONS = {"inner": 30, "reference": APGD(steps=10, loss="margin"), "random_queries": 40, "progress": False}
LESS = {"levels": (0.5,), "random_queries": 2}
WEAK, SOUND = PGD(steps=1), PGD(steps=20)


def several(attacks, n: int = 16, **options) -> AttackTests:
    return test_attacks(fixed(mlp()), brinell.Problem(*samples(n)), LINF, attacks, **{**OPTIONS, **options})


def numbers(test) -> dict:
    found = test.to_json()
    return {k: v for k, v in found.items() if k not in ("cost", "text")}


def test_each_test_is_the_one_it_has_alone_and_readouts_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, build = [], binarization.build_tasks

    def counted(*args):
        fits.append(args)
        return build(*args)

    alone = [test_attack(fixed(mlp()), brinell.Problem(*samples(16)), LINF, a, **OPTIONS) for a in (WEAK, SOUND)]
    monkeypatch.setattr(binarization, "build_tasks", counted)
    both = several([WEAK, SOUND])
    assert len(fits) == 1
    for a, b in zip(alone, both.tests, strict=True):
        assert numbers(a) == numbers(b) and torch.equal(a.found, b.found) and torch.equal(a.witnesses, b.witnesses)
    assert not both.tests[0].passed and both.tests[1].passed


def test_all_must_pass() -> None:
    assert several([SOUND, SOUND], kappa=0.99).passed
    assert not several([SOUND, WEAK], kappa=0.99).passed
    assert several([SOUND, SOUND], kappa=0.99).names == ("custom", "custom (2)")


def test_a_sweep_over_kappa_has_every_attack_at_every_level() -> None:
    swept = several([WEAK, SOUND], sweep="kappa", values=(0.1, 0.9, 0.5))
    assert [p.kappa for p in swept.points] == [0.1, 0.5, 0.9]
    for p in swept.points:
        assert [level.kappa for level in p.levels] == [p.kappa] * 2
        assert p.levels[0].random == p.levels[1].random
    # The same readouts throughout: a point that is adversarial at one closeness is so at every smaller one.
    assert all(a.rasr.k >= b.rasr.k for a, b in pairwise(swept.points)) and swept.points[0].rasr.k > 0
    assert all(p.levels[1].score.k >= p.levels[0].score.k for p in swept.points)


def test_a_sweep_has_every_kappa_and_the_random_points_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict = {}
    monkeypatch.setattr(several_module, "run_tests", lambda *a, **o: asked.update(o) or run_tests(*a, **{**o, **LESS}))
    several([SOUND], n=1, sweep="kappa", random_queries=None)
    assert asked["levels"] == binarization.KAPPAS and asked["random_queries"] == 400 and asked["curve"]


def test_a_sweep_over_inner_points_changes_only_their_number() -> None:
    swept = several([WEAK, SOUND], sweep="inner", values=(60, 10, 30), kappa=0.9)
    assert [p.inner for p in swept.points] == [10, 30, 60]
    alone = several([WEAK, SOUND], inner=30, kappa=0.9)
    assert swept.points[1].levels == tuple(t.level for t in alone.tests)
    assert [t.inner for t in swept.tests] == [60, 60]
    assert [p.kappa for p in several([SOUND], 2, sweep="inner", inner=60).points] == [0.999, 0.999]


def test_the_report_has_one_line_per_attack_and_one_for_random_points(tmp_path: Path) -> None:
    swept = several([WEAK, SOUND], sweep="kappa", values=(0.5, 0.99))
    report = swept.report()
    (table,), (figure,) = report.tables, report.figures
    assert table.columns == ("kappa", "n", "custom", "custom (2)", "R-ASR") and len(table.rows) == 2
    assert [s.name for s in figure.series] == ["custom", "custom (2)", "random points"]
    assert figure.series[1].y == tuple(100 * p.levels[1].score.value for p in swept.points)
    assert len(several([WEAK, SOUND], kappa=0.5).report().tables[0].rows) == 2
    pytest.importorskip("matplotlib")
    assert "random points" in plot(report, tmp_path / "kappa.svg").read_text()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sweep": "gap"}, "kappa"),
        ({"sweep": "kappa", "kappa": 0.5}, "Omit `kappa`"),
        ({"values": (1, 2)}, "sweep"),
        ({"sweep": "kappa", "values": (0.5, 1.5)}, "below 1"),
        ({"attacks": []}, "at least one attack"),
        ({"sweep": "inner", "values": (9.7, 30)}, "whole numbers of inner points, at least 1, got 9.7"),
        ({"sweep": "inner", "values": (30, 0, float("inf"))}, "at least 1, got 0, inf"),
    ],
)
def test_mistakes_are_told_with_a_remedy(options: dict, text: str) -> None:
    with pytest.raises(brinell.BrinellError, match=text):
        several(**{"attacks": [SOUND], "n": 2, **options})


# --------------------------------------------------------------------------------------------------------- command line


def run(*args: str):
    common = ["--model", "demo", "--data", "demo", "--eps", "0.1", "--inner", "49", "--n", "16", "--quiet"]
    common += ["--random-queries", "20"]
    return CliRunner().invoke(app, ["test-attack", *common, *args])


def test_the_program_tests_several_plans_and_fails_unless_all_pass() -> None:
    done = run("--plan", "fgsm, pgd20", "--plan", "fab", "--kappa", "0.99", "--json")
    found = json.loads(done.output)
    assert found["attacks"] == ["fgsm", "pgd20", "fab"] and found["sweep"] is None
    assert done.exit_code == (0 if all(t["passed"] for t in found["tests"]) else 1) == (0 if found["passed"] else 1)
    few = run("--plan", "pgd20,apgd", "--kappa", "0.99", "--n", "4")
    assert few.exit_code == 1 and few.output.count("Too few samples") == 2


def test_the_program_sweeps_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--plan", "pgd20", "--sweep", "kappa", "--values", "0.5,0.99", "--plot", str(tmp_path / "kappa.svg"))
    assert done.exit_code == 0, done.output
    assert "R-ASR" in done.output and (tmp_path / "kappa.svg").exists()
    assert "add --sweep" in " ".join(run("--plot", str(tmp_path / "a.svg")).output.split())
    assert "numbers" in run("--sweep", "inner", "--values", "a,b").output
