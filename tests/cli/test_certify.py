"""`brinell certify` and `brinell evaluate --certify`: both ends of the robust accuracy from the command line."""

import json
from pathlib import Path
from typing import Any

from brinell.results import Run

COMMON = ("--model", "demo", "--data", "demo", "--n", "24", "--eps", "0.01", "--plan", "fgsm", "--no-test", "--quiet")


def test_certificates_are_added_shown_and_verified(brinell: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    brinell("evaluate", *COMMON, "--out", out)
    found = brinell("certify", out, "--model", "demo", "--method", "crown", "--quiet").out
    run = Run.open(out)
    assert run.bracket is not None and "certified accuracy" in found and f"{run.bracket.open:,} open" in found
    assert f"brinell verify {out} --model demo --data demo" in found and "Next:" in found
    facts = json.loads(brinell("certify", out, "--model", "demo", "--method", "crown", "--quiet", "--json").out)
    assert facts["certified_accuracy"]["k"] == run.bracket.certified.k
    checked = brinell("verify", out, "--model", "demo", "--rerun", "3").out
    assert "3 of 19 certified samples certified again" in checked
    fresh = brinell("evaluate", *COMMON, "--out", str(tmp_path / "both"), "--certify", "--json").out
    assert json.loads(fresh)["certified_accuracy"]["k"] >= run.bracket.certified.k


def test_what_does_not_fit_is_one_line(brinell: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    brinell("evaluate", *COMMON, "--out", out)
    # Without --n, the data that --data names are cut to those of the Run.
    assert brinell("certify", out, "--model", "demo", "--data", "demo", "--method", "interval", "--quiet").code == 0
    refused = brinell("certify", out, "--model", "demo", "--n", "9")
    assert refused.code == 2 and "the 24 samples of the Run" in refused.err
    refused = brinell("certify", out, "--model", "demo", "--draws", "100")
    assert refused.code == 2 and "--draws" in refused.err
