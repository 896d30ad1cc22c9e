"""--dry-run says what it would cost and writes nothing; --no-images keeps no adversarials; the default precision."""

import json
from pathlib import Path
from typing import Any

from brinell import Run

EVALUATE = ("evaluate", "--model", "demo", "--data", "demo", "--n", "12", "--eps", "0.1", "--plan", "fgsm", "-q")


def test_dry_run_shows_a_table_and_a_sentence(brinell: Any, here: Path) -> None:
    before = sorted(here.rglob("*"))
    code, out, err = brinell(*EVALUATE, "--out", "run", "--dry-run")
    assert (code, err) == (0, "")
    for part in ("stage", "samples", "forwards", "time", "clean", "fgsm-ce", "total"):
        assert part in out
    assert "Estimated cost: " in out.splitlines()[-1]
    assert sorted(here.rglob("*")) == before


def test_dry_run_as_json_tells_the_passes(brinell: Any, here: Path) -> None:
    """One gradient step takes every sample two answers, so what is told is what it takes."""
    told = json.loads(brinell(*EVALUATE, "--dry-run", "--json").out)
    run = json.loads(brinell(*EVALUATE, "--json").out)
    assert told["forwards"] == run["cost"]["forwards"]
    assert told["backwards"] == run["cost"]["backwards"]


def test_dry_run_of_a_resume_counts_what_is_left(brinell: Any, here: Path) -> None:
    brinell(*EVALUATE, "--out", "run")
    files = sorted((here / "run").rglob("*"))
    told = json.loads(brinell(*EVALUATE, "--out", "run", "--resume", "--dry-run", "--json").out)
    assert told["forwards"] == told["samples"] == 0
    assert sorted((here / "run").rglob("*")) == files


def test_no_images(brinell: Any, here: Path) -> None:
    code, out, _ = brinell(*EVALUATE, "--out", "run", "--no-images")
    assert code == 0
    assert "none is stored" in out
    assert not Run.open(here / "run").images
    code, _, err = brinell("verify", "run", "--model", "demo", "--data", "demo")
    assert code == 2
    assert "--no-images" in err


def test_the_default_precision_on_a_cpu_is_float32(brinell: Any, here: Path) -> None:
    out = json.loads(brinell(*EVALUATE, "--out", "run", "--json").out)
    assert not any("recision" in note for note in out["notes"])
    assert Run.open(here / "run").manifest["identity"]["precision"] == "float32"
