"""brinell report."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from brinell import Run

EVALUATE = ("evaluate", "--model", "demo", "--data", "demo", "--n", "24", "--eps", "0.1", "--plan", "fgsm", "-q")


@pytest.fixture
def run(brinell: Any, here: Path) -> Run:
    assert brinell(*EVALUATE, "--out", "run").code == 0
    return Run.open(here / "run")


def test_a_page_by_default(brinell: Any, run: Run, here: Path) -> None:
    code, out, err = brinell("report", "run")
    assert (code, err) == (0, "")
    text = (here / "report.html").read_text()
    assert out.startswith("report.html, ")
    assert f"{100 * run.robust_accuracy.value:.1f}<small>%" in text
    # The embedded data is found by itself, and its classes have names.
    assert 'alt="Original of sample' in text
    assert "Sneaker" in text


@pytest.mark.parametrize("format", ["md", "json", "csv", "junit"])
def test_text_goes_to_standard_output(brinell: Any, run: Run, format: str) -> None:
    code, out, err = brinell("report", "run", "--format", format)
    assert (code, err) == (0, "")
    if format == "json":
        assert json.loads(out)["runs"][0]["robust_accuracy"]["k"] == run.robust_accuracy.k
    elif format == "junit":
        assert ElementTree.fromstring(out).tag == "testsuites"
    else:
        assert "fgsm-ce" in out


def test_the_ending_tells_the_format(brinell: Any, run: Run, here: Path) -> None:
    assert brinell("report", "run", "run", "--out", "both.json").code == 0
    assert len(json.loads((here / "both.json").read_text())["runs"]) == 2


def test_fail_under(brinell: Any, run: Run, here: Path) -> None:
    low = 100 * run.robust_accuracy.low
    accept = ("--require", "upper-bound")
    code, out, _ = brinell("report", "run", "--fail-under", str(int(low)), *accept)
    assert code == 0 and "run: passes, robust accuracy" in out and not (here / "report.html").exists()
    code, _, err = brinell("report", "run", "--fail-under", str(int(low) + 1), "--out", "gate.junit", *accept)
    assert code == 1
    assert "lower bound" in err and f"below {int(low) + 1} %" in err
    assert ElementTree.parse(here / "gate.junit").find(".//failure") is not None


@pytest.mark.parametrize("gate", [("--fail-under", "0"), ("--require", "reliable")])
def test_a_gate_does_not_pass_what_is_not_reliable(brinell: Any, run: Run, here: Path, gate: tuple[str, ...]) -> None:
    code, _, err = brinell("report", "run", "run", *gate, "--out", "junit.xml")
    assert code == 1
    assert err.count("expected the verdict reliable, got upper bound: The plan fgsm is weak") == 2
    assert len(ElementTree.parse(here / "junit.xml").findall(".//failure")) == 2


def test_a_gate_says_that_the_samples_are_too_few(brinell: Any, run: Run, here: Path) -> None:
    _, _, err = brinell("report", "run", "--fail-under", "0")
    assert "Below 100 samples" in err and "--require upper-bound" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--fail-under", "145"), "expected a share from 0 to 100 % for --fail-under, got '145'. Write e.g."),
        (("--require", "reliably"), "Did you mean 'reliable'"),
        (("--format", "pdf"), "a format among"),
        (("--out", "report.doc"), "ending"),
        (("--out", "nowhere/report.html"), "folder"),
        (("--classes", "a,b"), "10 class names"),
        (("--data", "missing.npz"), "missing.npz"),
    ],
)
def test_mistakes_are_told_in_a_sentence(brinell: Any, run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = brinell("report", "run", *arguments)
    assert code == 2
    assert told in err
