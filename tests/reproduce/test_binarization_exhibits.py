"""The exhibits of the binarization paper: the gallery is read back as measured, and sweeps have the paper's layout."""

import json
from pathlib import Path

import pytest

from brinell.defences import DEFENCES, measure
from brinell.environment import version
from brinell.reproduce import Setup, exhibits, reproduce
from brinell.reproduce.papers import binarization

pytestmark = pytest.mark.usefixtures("unchecked")


def test_every_figure_and_section_with_numbers_has_its_place() -> None:
    names = [e.name.partition("/")[2] for e in exhibits("binarization")]
    assert names == [
        "figure-1", "section-4.1", "figure-2", "section-4.2", "figure-3", "section-4.3", "appendix-b", "figure-4",
    ]  # fmt: skip
    assert len(binarization.FIGURE_2) == 13


def test_figures_2_and_4_show_what_the_gallery_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (row,) = measure(["logit-scaling"], 4)
    folder = tmp_path / "runs" / "gallery"
    folder.mkdir(parents=True)
    for d in DEFENCES:
        (folder / f"{d.name}-4-0-{version()}.json").write_text(json.dumps({**row.to_json(), "name": d.name}))
    setup = Setup(n=4, out=tmp_path, progress=False)
    scores = reproduce("binarization/figure-2", setup).report.tables[0].rows
    assert [r[0] for r in scores] == [d.name for d in DEFENCES]
    assert scores[0][3:] == (str(row.original.score), str(row.stronger.score), "failed", row.stronger.test.verdict)
    accuracies = reproduce("binarization/figure-4", setup).report
    assert accuracies.tables[0].rows[0][2:5] == tuple(map(str, (row.clean, row.original.robust, row.stronger.robust)))
    assert accuracies.tables[0].rows[0][5:] == scores[0][3:5]
    assert accuracies.figures[0].series[1].y == (100 * row.stronger.robust.value,) * len(DEFENCES)


@pytest.mark.slow
def test_figure_1_tells_a_weak_attack_from_a_sound_one(tmp_path: Path) -> None:
    weak, sound = reproduce("binarization/figure-1", Setup(n=3, out=tmp_path, progress=False)).report.tables[0].rows
    assert weak[-1] == "failed" and str(weak[3]).startswith("0.0 %") and str(sound[3]).startswith("100.0 %")


def test_figure_3_of_a_given_model_has_one_line_per_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binarization, "KAPPAS", (0.5, 0.9))
    exhibit = next(e for e in exhibits("binarization") if e.name.endswith("figure-3"))
    assert exhibit.measure is not None
    report = exhibit.measure(Setup(models=("net=demo",), n=2, out=tmp_path, progress=False))
    assert [s.name for s in report.figures[0].series] == ["pgd-1", "fgsm", "pgd20", "apgd", "random points"]
    assert [r[0] for r in report.tables[0].rows] == ["0.5", "0.9"]
