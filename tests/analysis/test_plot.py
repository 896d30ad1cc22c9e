"""Every kind of figure is drawn, and the same numbers give the same picture."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from brinell.analysis.plot import plot
from brinell.errors import InputError
from brinell.results.analyses import AnalysisReport, Figure, Series

pytest.importorskip("matplotlib")
KINDS: tuple[Any, ...] = get_args(get_type_hints(Figure)["kind"])


def findings(kind: Any) -> AnalysisReport:
    x: tuple[Any, ...] = ("one", "two", "three") if kind in ("bars", "matrix") else (0.1, 0.5, 0.9)
    series = (
        Series("first", x, (10.0, 60.0, 90.0), (5.0, 50.0, 80.0), (15.0, 70.0, 95.0)),
        Series("second", x, (1.0, 2.0, 3.0)),
    )
    return AnalysisReport(
        "test", "Test", "", figures=(Figure(f"as {kind}", kind, "across", "up", series, kind == "line"),)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    first = plot(findings(kind), tmp_path / "a.svg").read_bytes()
    assert plot(findings(kind), tmp_path / "b.svg").read_bytes() == first
    text = first.decode()
    assert all(f">{word}<" in text for word in (f"as {kind}", "across", "up", "first", "second"))


def test_all_figures_in_one_picture(tmp_path: Path) -> None:
    many = AnalysisReport("test", "Test", "", figures=tuple(findings(kind).figures[0] for kind in KINDS))
    text = plot(many, tmp_path / "all.svg").read_text()
    assert all(f"as {kind}" in text for kind in KINDS)
    assert plot(many, tmp_path / "all.png").stat().st_size > 10_000


def test_many_series_differ_in_style_and_have_a_legend_beside_them(tmp_path: Path) -> None:
    series = tuple(Series(f"number {i}", (0.0, 1.0), (float(i), i + 1.0)) for i in range(10))
    widths, dashed = [], []
    for some in (series[:5], series):
        text = plot(
            AnalysisReport("t", "T", "", figures=(Figure("f", "steps", "x", "y", some),)), tmp_path / "a.svg"
        ).read_text()
        widths.append(float(text.split('width="')[1].split("pt")[0]))
        dashed.append(text.count("stroke-dasharray"))
        assert all(f">{s.name}<" in text for s in some)
    assert widths[0] < widths[1]
    # Three of ten lines share a colour with one before, here and in the legend.
    assert dashed[0] == 0 and dashed[1] == 6


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg"):
        plot(findings("bars"), tmp_path / "a.jpeg")
    with pytest.raises(InputError, match="with a figure"):
        plot(AnalysisReport("test", "Test", ""), tmp_path / "a.svg")
