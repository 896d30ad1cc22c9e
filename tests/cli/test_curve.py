"""The verbs curve and distances."""

import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import brinell
from brinell.cli.commands import curve as command
from brinell.cli.main import app
from brinell.curves import Curve

pytestmark = pytest.mark.usefixtures("unchecked")


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_curve(tmp_path):
    out = tmp_path / "c"
    common = ("curve", "-m", "demo", "-d", "demo", "--n", "6", "--norm", "Linf", "--plan", "minimal-quick", "-q")
    told = run(*common, "--eps", "0.1", "--out", str(out))
    assert "robust accuracy, Linf, n = 6" in told and "eps = 0.1" in told
    stored = json.loads((out / "curves.json").read_text())
    assert len(stored) == 1 and len(stored[0]["distances"]) == 6 and (out / "0-Linf.csv").exists()
    again = json.loads(run(*common, str(out / "0-Linf"), "--json"))
    assert again[0]["distances"] == stored[0]["distances"]


def test_transfer(tmp_path):
    out = tmp_path / "c"
    common = ("curve", "-m", "demo", "-m", "demo", "-d", "demo", "--n", "6", "--plan", "minimal-quick", "-q")
    told = run(*common, "--norm", "Linf", "--norm", "L2", "--transfer", "--out", str(out))
    assert "adversarial examples of one norm in another" in told and "demo (1) − demo (2)" in told
    assert (out / "0-Linf-in-L2.csv").exists() and (out / "1-L2-in-Linf.csv").exists()
    names = [c["name"] for c in json.loads((out / "curves.json").read_text())]
    assert names[4:6] == ["demo (1), attacked in Linf", "demo (1), attacked in L2"]
    refused = CliRunner().invoke(app, [*common, "--norm", "L2", "--transfer"])
    assert refused.exit_code == 2 and "two norms" in refused.output


def test_curves_without_a_finite_median_are_shown_without_radii(capsys):
    for distances in ([0.5, np.inf, np.inf], [0.0, 0.0, 0.3]):
        command.show([Curve("L2", np.arange(3), np.array(distances), "net")], [], Console())
        told = capsys.readouterr().out
        assert "net" in told and "eps =" not in told and "choose radii with --eps" in told


def test_norms_are_checked_before_the_attacks_and_repeats_are_dropped(monkeypatch):
    measured = []

    def quick(m, problem, norm, *a, **o):
        measured.append(norm)
        return Curve(norm, np.arange(4), np.ones(4), "demo")

    monkeypatch.setattr(command, "curve", quick)
    common = ["curve", "-m", "demo", "-d", "demo", "--n", "4", "--norm", "L2", "--norm", "L2", "-q"]
    done = CliRunner().invoke(app, [*common, "--norm", "L0", "--plan", "paper-curves"])
    assert isinstance(done.exception, brinell.PlanError) and "work in L0" in str(done.exception) and not measured
    told = run(*common, "--norm", "Linf")
    assert measured == ["L2", "Linf"] and told.count("robust accuracy, L2") == 1
    done = CliRunner().invoke(app, [*common, "--transfer"])
    assert "two norms" in done.output


def test_distances_as_picture_and_files(tmp_path):
    pytest.importorskip("matplotlib")
    run("distances", "-d", "demo", "--n", "40", "--norm", "Linf", "--plot", str(tmp_path / "d.svg"),
        "--csv", str(tmp_path / "d.csv"))  # fmt: skip
    assert "smallest distance between classes" in (tmp_path / "d.svg").read_text()
    assert len((tmp_path / "d.csv").read_text().splitlines()) == 41
    assert (tmp_path / "d-pairs.csv").read_text().splitlines()[0] == "norm,class_a,class_b,smallest_distance"


def test_distances(tmp_path):
    x = np.array([[0.1, 0.1], [0.4, 0.1]], dtype=np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.array([0, 1]))
    told = run("distances", "-d", str(tmp_path / "d.npz"))
    assert "Linf  smallest 0.30   largest 0.30" in told and "L1" in told
    told = json.loads(run("distances", "-d", str(tmp_path / "d.npz"), "--norm", "Linf", "--eps", "0.2", "--json"))
    assert told["norms"]["Linf"]["smallest"] == pytest.approx(0.3) and "half the smallest" in told["warning"]
