"""Certificates in every report: both ends of the robust accuracy, with intervals and the open samples."""

import csv
import io
import json
import re

import pytest

import brinell
from brinell.leaderboard.records import of_run
from brinell.leaderboard.tables import as_table
from brinell.report.document import document, gauge
from brinell.report.facts import facts
from brinell.report.formats import as_csv, as_json, as_latex, as_markdown
from brinell.results import Proportion, Run, compare


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A Run with certificates and the same Run without."""
    folder, data = tmp_path_factory.mktemp("runs"), brinell.data.load("demo", 24)
    options = {"test": False, "progress": False}
    plain = brinell.evaluate("demo", data, brinell.Linf(0.01), "fgsm", out=folder / "plain", **options)
    both = brinell.evaluate("demo", data, brinell.Linf(0.01), "fgsm", out=folder / "both", certify="crown", **options)
    return both, plain


def test_every_format_shows_both_ends(runs: tuple[Run, Run]) -> None:
    both, plain = runs
    low = both.certified_accuracy
    assert low is not None and 0 < low.k < both.robust_accuracy.k
    assert f"Certified accuracy <b>{100 * low.value:.1f} %" in document([both])
    assert "Pale: clean, lighter: robust, full: certified accuracy" in document([both])
    assert str(low) in as_markdown([both]) and "certified accuracy" in as_latex([both])
    lines = list(csv.DictReader(io.StringIO(as_csv([both]))))
    assert (lines[-1]["stage"], float(lines[-1]["accuracy"])) == ("certified", low.value)
    found = json.loads(as_json([both]))["runs"][0]
    assert found["certified_accuracy"]["k"] == low.k and found["bracket"]["open"] == both.bracket.open
    assert len(found["bracket"]["open_ids"]) == found["bracket"]["open"]
    assert f"{100 * low.value:.1f} % [" in both.sentence() and "certified" in both.sentence()
    assert str(both.bracket) in str(both)
    assert "Pale: clean, full: robust accuracy" in document([plain])
    for text in (document([plain]), as_markdown([plain]), as_latex([plain]), as_csv([plain]), str(plain)):
        assert "certified" not in text.lower()
    assert facts(plain)["bracket"] is None is facts(plain)["certified_accuracy"]


def test_a_comparison_names_what_is_certified(runs: tuple[Run, Run]) -> None:
    both, plain = runs
    result = compare(both, plain)
    assert result.certified == (both.certified_accuracy, None) and result.agreement.k == 24
    assert f"Certified accuracy of A: {both.certified_accuracy}." in str(result)
    assert "Certified accuracy of B" not in str(result)


def test_a_leaderboard_has_a_column_where_a_run_is_certified(runs: tuple[Run, Run]) -> None:
    both, plain = (of_run(run, "demo", "Linf", name) for run, name in zip(runs, ("Both", "Plain"), strict=True))
    assert both.certified == round(100 * float(runs[0].certified_accuracy), 2) and plain.certified is None
    assert type(both).from_json(both.to_json()).certified == both.certified
    assert "Certified" in as_table([both, plain]) and "Certified" not in as_table([plain])


def test_the_gauge_shows_the_open_part_between_both_ends() -> None:
    picture = gauge(Proportion(90, 100), Proportion(50, 100), Proportion(30, 100))
    assert "Certified accuracy 30.0 %" in picture and picture.count("<rect") == 4
    assert gauge(Proportion(90, 100), Proportion(50, 100)).count("<rect") == 3


def test_overlapping_intervals_of_few_samples_are_drawn_apart() -> None:
    heights = set(re.findall(r'd="M[\d.]+ ([\d.]+)H', gauge(Proportion(9, 10), Proportion(7, 10), Proportion(6, 10))))
    assert len(heights) == 3
