"""The verb corruptions."""

import json

import pytest
from typer.testing import CliRunner

import brinell
from brinell.cli.main import app

pytestmark = pytest.mark.usefixtures("unchecked")
COMMON = ("corruptions", "-m", "demo", "-d", "demo", "--n", "20", "--only", "contrast", "--only", "fog", "-q")


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_table_and_a_sentence():
    told = run(*COMMON)
    assert "n = 20" in told and "contrast" in told and "fog" in told and "snow" not in told
    assert "2 corruptions at severities 1, 2, 3, 4, 5" in told


def test_rows_of_a_table_become_a_baseline(tmp_path):
    file = tmp_path / "all.csv"
    first = json.loads(run(*COMMON, "--severity", "1", "--severity", "5", "--csv", str(file), "--json"))
    assert first[0]["mce"] is None and [s["severity"] for s in first[0]["settings"]] == [1, 5, 1, 5]
    assert file.read_text().splitlines()[1] == "severity,1,5,1,5"
    for spec in (str(file), f"{file}:demo"):
        again = json.loads(run(*COMMON, "--severity", "1", "--severity", "5", "--baseline", spec, "--json"))
        assert again[0]["mce"] == pytest.approx(1) and again[0]["baseline"] == "demo"
        assert again[0]["mean"] == first[0]["mean"]


def test_the_clean_error_of_a_baseline(tmp_path):
    file = tmp_path / "all.csv"
    first = json.loads(run(*COMMON, "--severity", "5", "--csv", str(file), "--json"))
    clean = 100 * (1 - first[0]["clean"]["value"])
    assert first[0]["relative_mce"] is None
    words = (*COMMON, "--severity", "5", "--baseline", str(file))
    again = json.loads(run(*words, "--clean-error", str(clean), "--json"))
    assert again[0]["relative_mce"] == pytest.approx(1) and again[0]["baseline_clean_error"] == pytest.approx(
        clean / 100
    )
    assert "Relative mCE (clean error of demo" in " ".join(run(*words, "--clean-error", str(clean)).split())
    alone = CliRunner().invoke(app, [*COMMON, "--clean-error", "40"])
    assert alone.exit_code != 0 and isinstance(alone.exception, brinell.InputError | SystemExit)
