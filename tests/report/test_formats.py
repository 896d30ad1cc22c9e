"""Reports for programs say what the Run says."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.report.conftest import Images

from brinell.report import text
from brinell.report.formats import as_junit
from brinell.report.gate import check_gate
from brinell.results import Run, compare
from brinell.results.format.manifest import Manifest


def test_json_has_every_number(run: Run, make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    other = make(tmp_path / "other", images, model__name="other")
    found = json.loads(text([run, other], "json"))
    first = found["runs"][0]
    assert first["robust_accuracy"]["k"] == run.robust_accuracy.k
    assert [s["k"] for s in first["stages"]] == [p.k for _, p in run.accuracy_after()]
    assert first["manifest"] == run.manifest
    (pair,) = found["comparisons"]
    assert pair["difference"]["low"] == compare(run, other).difference.low


def test_csv_has_a_line_per_stage(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(text([run], "csv"))))
    assert [r["stage"] for r in rows] == ["clean", *run.attacks]
    assert [float(r["accuracy"]) for r in rows[1:]] == [p.value for _, p in run.accuracy_after()]
    assert sum(int(r["forwards"]) for r in rows) == run.cost.forwards
    assert [int(r["broken"]) for r in rows] == [5, 5, 5, 5]


def test_markdown_survives_hostile_names(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    run = make(tmp_path / "run", images, model__name="a|b\n<script>*x*</script>")
    lines = text([run], "md").splitlines()
    assert "\\<script\\>" in lines[2]
    assert lines[2].replace("\\|", "").count("|") == 7
    assert f"| {run.robust_accuracy} |" in lines[2]


def test_latex_has_the_numbers_of_the_run(run: Run, make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    other = make(tmp_path / "other", images, model__name="a_b & 50 %")
    made = text([run, other], "tex")
    assert made.count(r"\begin{tabular}") == made.count(r"\end{tabular}") == 4  # both Runs, their stages, the pair
    assert r"a\_b \& 50 \%" in made
    assert made.count(r"\caption{") == made.count(r"\label{tab:") == 4
    tags = re.findall(r"\\label\{(tab:[\w.-]+)\}", made + text([run], "latex") + text([other], "tex", label="mine"))
    assert len(set(tags)) == len(tags) == 8 and {"tab:robust-mine", "tab:stages-mine"} <= set(tags)
    p = run.robust_accuracy
    assert rf"& ${100 * p.value:.1f}\ [{100 * p.low:.1f}, {100 * p.high:.1f}]$ &" in made
    assert run.to_latex().count(r"$\varepsilon = ") == 2
    assert made.count(f"$n = {p.n}$.") == 1  # what both share is said once
    rows = [line for line in made.splitlines() if line.endswith(r"\\")]
    assert [r.split(" & ")[0] for r in rows if " of " in r][: len(run.attacks)] == [
        a.replace("_", r"\_") for a in run.attacks
    ]


def test_junit_parses_and_counts(run: Run) -> None:
    checks = [
        {"name": "good", "level": "ok", "message": "fine"},
        {"name": "bad <&>\0", "level": "fail", "message": "broken \x1b[0m"},
    ]
    run = Run(run.path, Manifest.read({**run.manifest, "checks": checks}))
    root = ElementTree.fromstring(as_junit([run], 45.0))
    (suite,) = root
    cases = {case.get("name"): case.find("failure") is not None for case in suite}
    assert cases == {
        "verdict": True,  # a failed check makes it invalid
        "finished": False,
        "good": False,
        "bad <&> ": True,
        "robust accuracy of at least 45 %": False,
    }
    assert suite.get("tests") == "5" and suite.get("failures") == "2"


@pytest.mark.parametrize(("percent", "fails"), [(46.0, False), (47.0, True), (60.0, True), (None, False)])
def test_the_lower_bound_decides(run: Run, percent: float | None, fails: bool) -> None:
    assert 0.46 < run.robust_accuracy.low < 0.47
    findings = check_gate(run, percent, "suspicious")
    assert bool(findings) is fails
    assert all("lower bound" in finding.message and "60.0 %" in finding.message for finding in findings)
