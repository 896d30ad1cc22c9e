"""The verbs curve and distances."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from brinell.cli.main import app

pytestmark = pytest.mark.usefixtures("unchecked")


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_curve(tmp_path):
    out = tmp_path / "c"
    common = ("curve", "-m", "demo", "-d", "demo", "--n", "6", "--norm", "Linf", "--plan", "minimal-quick", "-q")
    told = run(*common, "--eps", "0.1", "--out", str(out))
    assert "robust error, Linf, n = 6" in told and "eps = 0.1" in told
    stored = json.loads((out / "curves.json").read_text())
    assert len(stored) == 1 and len(stored[0]["distances"]) == 6 and (out / "0-Linf.csv").exists()
    again = json.loads(run(*common, "--known", str(out / "0-Linf"), "--json"))
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
