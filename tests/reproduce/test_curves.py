"""The exhibits of the paper on robustness curves."""

import math

import numpy as np
import pytest

from brinell.errors import InputError
from brinell.reproduce import Setup, exhibits, find, reproduce
from brinell.reproduce.papers import curves

pytestmark = pytest.mark.usefixtures("unchecked")


def test_every_table_and_figure_is_there():
    names = [e.name for e in exhibits("curves")]
    assert sorted(names) == sorted([f"curves/figure-{i}" for i in range(1, 9)] + ["curves/table-1", "curves/table-2"])
    assert all(e.published and e.differences and e.measure for e in exhibits("curves"))


def test_figure_1_has_the_values_of_the_text(tmp_path):
    made = reproduce("curves/figure-1", Setup(out=tmp_path))
    assert made.report.tables[0].rows[:2] == made.exhibit.published[0].rows
    # The closed form of the smooth boundary at half of eps: ¼ + ¼ sin(−π/2 + π/2).
    smooth = made.report.figures[0].series[0]
    assert np.interp(0.5, smooth.x, smooth.y) == pytest.approx(100 * (0.25 + 0.25 * math.sin(0)), abs=0.5)


def test_figure_6_crosses_in_l2_only(tmp_path):
    made = reproduce("curves/figure-6", Setup(out=tmp_path, progress=False))
    distances, linf, l2 = made.report.tables
    assert [row[2] for row in distances.rows] == [row[3] for row in distances.rows], "attack and closed form"
    assert (linf.rows[0][1:3], l2.rows[0][1:3]) == ((0, 0), (1, 1))


@pytest.mark.parametrize("name", ["table-1", "table-2", "figure-3", "figure-4", "figure-5", "figure-7", "figure-8"])
def test_the_others_run_on_the_demo(name, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "PAPER", curves.QUICK)
    uses = find(f"curves/{name}").uses
    models = ("a=demo", "b=demo") if "models" in uses else ("a=demo",) if "model" in uses else ("demo",)
    other = ("b=demo",) if "other" in uses else ()
    made = reproduce(f"curves/{name}", Setup(models=models, n=3, other=other, out=tmp_path, progress=False))
    text = (tmp_path / "result.md").read_text()
    assert made.report.tables and "The paper:" in text and str(tmp_path) not in text


def test_figure_3_says_what_the_p_values_say():
    said = curves._slopes([("a", "9 %", 29, 72, "2.2e-05"), ("b", "9 %", 72, 29, "2.2e-05"), ("c", "9 %", 23, 24, "1")])
    assert "in 1 of 3 curves (p < 0.05): a, p = 2.2e-05; not shown for b" in said
    assert "in 0 of 1 curve (" in curves._slopes([("c", "9 %", 23, 24, "1")])


def test_figure_3_refuses_models_without_data(tmp_path):
    with pytest.raises(InputError, match="2 models and 1 data sets"):
        reproduce("curves/figure-3", Setup(models=("a=demo", "b=demo"), n=3, out=tmp_path))
