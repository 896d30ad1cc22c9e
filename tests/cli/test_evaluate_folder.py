"""Without --out a Run lies in runs/, and the last lines say where and what to do with it."""

from pathlib import Path
from typing import Any

import pytest

from brinell.results.format import folders

CALL = ("evaluate", "--model", "demo", "--data", "demo", "--n", "8", "--eps", "8/255", "--plan", "fgsm", "-q")


@pytest.fixture(autouse=True)
def _in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PARENT", "runs")


def test_the_folder_and_the_next_commands_end_the_output(brinell: Any, here: Path) -> None:
    result = brinell(*CALL, "--name", "Mine")
    folder = "runs/Mine-demo-linf-8_255-fgsm"
    assert result.code == 0 and (here / folder / "manifest.json").exists()
    tail = result.out.split("Run: ")[1].splitlines()
    assert tail[0] == folder
    assert [line.split()[-1] for line in tail[2:]] == ["report.html", "demo", "bundle.zip"]
    # The commands work as they are printed.
    for line in tail[2:]:
        command = line.partition("brinell ")[2].split()
        assert brinell(*command).code == 0, line
    assert brinell(*CALL, "--name", "Mine").code == 0
    assert [p.name for p in (here / "runs").iterdir()] == [Path(folder).name]
    assert brinell(*CALL, "--name", "Mine", "--json").out.rstrip().endswith("}")
    # A second Run on the same data is compared with the first, in one table too.
    second = brinell(*CALL, "--name", "Mine", "--seed", "1").out.split("Run: ")[1].splitlines()
    for line in second[2:4]:
        assert f"{folder} {folder}-2" in line and brinell(*line.partition("brinell ")[2].split()).code == 0
    tex = (here / "table.tex").read_text()
    assert tex.count(r"\begin{table}") == 1 and "Mine" in tex
    named = brinell("report", folder, f"{folder}-2", "--format", "tex-table", "--name", "Ours", "--name", "Theirs").out
    assert "Ours &" in named and "Theirs &" in named and "Mine" not in named
    assert "one --name for each of the 2 Runs, got 1" in brinell("report", folder, f"{folder}-2", "--name", "Ours").err
    pair = brinell("compare", folder, f"{folder}-2", "--format", "tex").out
    assert r"threat $\ell_\infty$, $\varepsilon = 8/255$, plan fgsm, data demo; 95" in pair and f"{folder})" not in pair


def test_the_demonstration_ends_with_its_report_and_the_next_commands(brinell: Any, here: Path) -> None:
    result = brinell("demo", "--n", "8", "--plan", "fgsm", "-q")
    page = "runs/demo-demo-linf-0.1-fgsm.html"
    assert result.out.rstrip().splitlines()[-1] == f"Report: {page} (open it in a browser)"
    assert (here / page).stat().st_size > 10_000 and "brinell verify runs/" in result.out
