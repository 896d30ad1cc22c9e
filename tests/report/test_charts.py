"""Pictures are drawn where the numbers say, can be read without seeing, and cannot be broken out of."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brinell.report.charts.chart import chart, data_table, table
from brinell.report.charts.scales import AxisScale, span, step, tick_text, ticks
from brinell.report.charts.types import Histogram, ReferenceLine, Waterfall, WaterfallLevel
from brinell.report.charts.xy import BOTTOM, HEIGHT, LEFT, PAD, RIGHT, TOP, WIDTH
from brinell.results.analyses import Figure, Series, Table

HOSTILE = "</svg></script><script>alert('x')</script>&amp;\"'"
SERIES = Series("net", (0.0, 0.1, 0.4), (10.0, 50.0, 100.0), (5.0, 40.0, 90.0), (20.0, 60.0, 100.0))
NAMED = (
    Series("clean", ("cat", "dog"), (80.0, 40.0), (70.0, 30.0), (90.0, 50.0)),
    Series("robust", ("cat", "dog"), (60.0, 0.0)),
)
FIGURES = [
    Figure("Errors", "line", "eps", "error (%)", (SERIES,)),
    Figure("Errors", "steps", "eps", "error (%)", (SERIES, Series("other", (0.2,), (3.0,)))),
    Figure("Errors", "points", "eps", "error (%)", (SERIES,), diagonal=True),
    Figure("Classes", "bars", "class", "accuracy (%)", NAMED),
    Figure("Confusion", "matrix", "predicted", "true", NAMED),
    Figure("Named", "line", "corruption", "error", (Series("net", ("fog", "snow"), (1.0, 2.0)),)),
    Figure("Empty", "bars", "class", "accuracy", ()),
    Figure("Nothing", "line", "x", "y", (Series("", (), ()),)),
    Figure("Holes", "line", "x", "y", (Series("net", (0.0, 1.0, math.inf), (math.nan, 2.0, 3.0)),)),
    Figure("Holes", "bars", "x", "y", (Series("net", ("a", "b"), (math.nan, -2.0)),)),
    Waterfall(
        "Accuracy", "accuracy (%)", (WaterfallLevel("clean", 80.0, 75.0, 85.0), WaterfallLevel("pgd", 50.0)), "robust"
    ),
    Histogram("Margins", "margin", "samples", (-1.0, 0.0, 1.0), ("stood", "fell"), ((3, 0), (1, 2))),
]


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def points(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [e for e in root.iter() if "pt" in e.get("class", "").split()]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f"{f.title}-{getattr(f, 'kind', '')}")
def test_every_figure_is_a_described_picture_with_its_table(figure: Figure) -> None:
    root = parse(chart(figure, lines=[ReferenceLine(0.2, "eps")]))
    svg = root.find("div/svg")
    assert svg is not None and svg.get("role") == "img"
    assert [e.tag for e in svg][:2] == ["title", "desc"]
    assert svg.get("aria-labelledby") == f"{svg[0].get('id')} {svg[1].get('id')}"
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").lower()
    cells = [td.text for td in root.iter("td")]
    assert len(cells) == sum(map(len, data_table(figure).rows))


@pytest.mark.parametrize("kind", ["line", "steps", "points"])
def test_points_lie_where_the_axes_say(kind: str) -> None:
    root = parse(chart(Figure("E", kind, "eps", "error (%)", (SERIES,))))  # type: ignore[arg-type]
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    for point, x, y in zip(points(root), SERIES.x, SERIES.y, strict=True):
        assert float(point.get("data-x", "")) == x and float(point.get("data-y", "")) == y
        at = [float(v) for v in re.findall(r"[\d.]+", point.get("transform", ""))]
        assert at[0] == pytest.approx(PAD + float(x) / 0.4 * (wide - 2 * PAD), abs=0.01)
        assert at[1] == pytest.approx(high - PAD - y / 100 * (high - 2 * PAD), abs=0.01)


def test_steps_hold_a_value_until_the_next() -> None:
    root = parse(chart(Figure("E", "steps", "eps", "error (%)", (Series("net", (0.0, 1.0), (0.0, 100.0)),))))
    (line,) = (e for e in root.iter("path") if e.get("class") == "line c0")
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split()) for p in line.get("d", "")[1:].split("L"))
    assert y0 == y1 > y2 and x0 < x1 == x2


def test_bars_are_as_long_as_their_values() -> None:
    found = points(parse(chart(FIGURES[3])))
    lengths = {(p.get("data-series"), p.get("data-name")): float(p.get("width", "")) for p in found}
    assert lengths["clean", "cat"] == pytest.approx(2 * lengths["clean", "dog"], abs=0.02)
    assert lengths["robust", "cat"] == pytest.approx(0.75 * lengths["clean", "cat"], abs=0.02)


def test_a_waterfall_falls_from_level_to_level() -> None:
    whole, fallen, left = points(parse(chart(FIGURES[10])))
    edge = [float(e.get("x", "")) + float(e.get("width", "")) for e in (whole, fallen, left)]
    assert edge[0] == pytest.approx(edge[1], abs=0.02)
    assert edge[2] == pytest.approx(float(fallen.get("x", "")), abs=0.02)
    assert float(left.get("width", "")) == pytest.approx(float(whole.get("width", "")) * 50 / 80, abs=0.02)


def test_columns_of_a_histogram_stack() -> None:
    stood, fell, alone = points(parse(chart(FIGURES[11])))
    assert float(fell.get("y", "")) + float(fell.get("height", "")) == pytest.approx(
        float(stood.get("y", "")), abs=0.02
    )
    assert float(stood.get("height", "")) == pytest.approx(3 * float(fell.get("height", "")), abs=0.05)
    assert float(alone.get("height", "")) == pytest.approx(2 * float(fell.get("height", "")), abs=0.05)


@pytest.mark.parametrize("kind", ["line", "steps", "points", "bars", "matrix"])
def test_hostile_names_stay_text(kind: str) -> None:
    figure = Figure(
        HOSTILE, kind, HOSTILE, HOSTILE, (Series(HOSTILE, (HOSTILE, "b"), (1.0, 2.0)), Series("b", ("b",), (3.0,)))
    )  # type: ignore[arg-type]
    text = chart(figure, lines=[ReferenceLine(1.0, HOSTILE)], note=HOSTILE) + table(
        Table(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    )
    assert "<script" not in text
    root = parse(f"<div>{text}</div>")
    assert not [e for e in root.iter() if e.tag == "script"]
    assert root.findtext("figure/figcaption") == HOSTILE


def test_equal_figures_have_names_of_their_own_if_asked() -> None:
    names = re.compile(r'id="(\w+)"')
    first, again, other = (names.findall(chart(FIGURES[0], key=k)) for k in ("", "", "b"))
    assert first == again and not set(first) & set(other)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_round_few_and_inside(low: float, size: float) -> None:
    found = ticks(low, low + size)
    unit = step(low, low + size)
    assert 2 <= len(found) <= 9 or size < 1e-9 * abs(low)
    assert all(low - 1e-6 * unit - 1e-9 * abs(low) <= v <= low + size + 1e-6 * unit + 1e-9 * abs(low) for v in found)
    assert unit / 10 ** math.floor(math.log10(unit) + 1e-9) == pytest.approx(
        min((1, 2, 2.5, 5), key=lambda r: abs(r - unit / 10 ** math.floor(math.log10(unit) + 1e-9)))
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
@example([5e-324])
@example([-5e-324, 0.0])
@example([1e-295, 3e-295])
def test_axes_hold_every_value(values: list[float]) -> None:
    low, high = span(values)
    slack = 1e-8 * max(map(abs, values))
    assert low <= min(values) + slack and high >= max(values) - slack and low < high


@pytest.mark.parametrize(
    ("value", "size", "text"), [(2.5, 2.5, "2.5"), (0.05, 0.05, "0.05"), (-4.0, 2.0, "−4"), (1e6, 1e6, "1,000,000")]
)
def test_ticks_as_text(value: float, size: float, text: str) -> None:
    assert tick_text(value, size) == text


@pytest.mark.parametrize("most", [1, 2, 3, 12, 13])
def test_counts_have_whole_ticks(most: int) -> None:
    """A histogram of few samples, and bars of few breaks."""
    histogram = Histogram("Margins", "margin", "samples", (0.0, 1.0, 2.0), ("all",), ((most, 1),))
    bars = Figure("First to break", "bars", "attack", "samples", (Series("", ("a", "b"), (float(most), 0.0)),))
    numbers = [e.text or "" for e in parse(chart(bars)).iter() if e.get("class") == "tick"]
    numbers += [e.text or "" for e in parse(chart(histogram)).iter() if e.get("class") == "tick" and e.get("dy")]
    assert len(numbers) >= 4 and all(text.isdigit() for text in numbers)


def test_a_scale_without_width_does_not_divide_by_zero() -> None:
    assert AxisScale(3.0, 3.0, 0.0, 10.0)(3.0) == 0
