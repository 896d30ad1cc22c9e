"""Figures as accessible HTML: SVG with a description, a legend, and the numbers as a table. No script is needed."""

import hashlib
from collections.abc import Sequence
from typing import Any

from brinell.report.charts.bars import bar_chart, matrix_chart, waterfall_chart
from brinell.report.charts.scales import number
from brinell.report.charts.svg import element, escape
from brinell.report.charts.types import Histogram, ReferenceLine, Waterfall, colour_classes
from brinell.report.charts.xy import WIDTH, histogram_chart, legend_key, xy_chart
from brinell.results.analyses import Figure, Table

AnyFigure = Figure | Waterfall | Histogram
# Longer tables are cut; the numbers are in the Run.
MOST_ROWS = 400
# Names up to this length are not wrapped.
SHORT = 20


def chart(
    figure: AnyFigure,
    *,
    lines: Sequence[ReferenceLine] = (),
    note: str = "",
    key: str = "",
    labels: Sequence[Sequence[str]] = (),
) -> str:
    """Return the figure as an HTML `<figure>`: caption, legend, SVG, a note, and a collapsed table of its data.

    `files/theme.css` sets colours and fonts; `files/charts.js` adds tooltips and zoom. Without the script, the native
    titles of the points show their values. `key` makes the HTML ids of a repeated figure distinct; `lines` are
    reference lines. `labels` name the points of a line, step or point chart: one sequence per series.

    >>> from brinell.results.analyses import Series
    >>> text = chart(Figure("Errors", "line", "eps", "error (%)", (Series("net", (0.0, 0.1), (10.0, 80.0)),)))
    >>> text.startswith('<figure class="chart line"'), 'role="img"' in text, "<table>" in text
    (True, True, True)
    """
    inside, height, zoom = _draw(figure, lines, labels)
    # Equal figures get equal ids, so that a report made twice is the same file.
    name = hashlib.sha256(repr((figure, tuple(lines), key)).encode()).hexdigest()[:10]
    title = element("title", escape(figure.title), id=f"t{name}")
    description = element("desc", escape(describe(figure)), id=f"d{name}")
    svg = element(
        "svg", title, description, inside, class_="canvas", viewBox=f"0 0 {WIDTH} {height}", role="img",
        aria_labelledby=f"t{name} d{name}", **zoom,
    )  # fmt: skip
    caption = element("figcaption", escape(figure.title))
    below = element("p", escape(note), class_="note") if note else ""
    kind = figure.kind if isinstance(figure, Figure) else type(figure).__name__.lower()
    return element(
        "figure", caption, _legend(figure), element("div", svg, class_="stage"), below,
        _data_details(data_table(figure, labels)),
        class_=f"chart {kind}",
    )  # fmt: skip


def table(content: Table, *, caption: bool = True) -> str:
    """Return the table as HTML, with columns of numbers aligned to the right.

    >>> table(Table("T", ("a", "b"), (("<x>", 1.5),)))
    '<div class="scroll" tabindex="0"><table><caption>T</caption><thead><tr><th scope="col" class="keep">a</th><th
    scope="col" class="n">b</th></tr></thead><tbody><tr><td class="keep">&lt;x&gt;</td><td
    class="n">1.5</td></tr></tbody></table></div>'
    """
    right = [all(not isinstance(row[i], str) for row in content.rows) for i in range(len(content.columns))]
    kinds = ["n" if r and content.rows else _kept(content, i) for i, r in enumerate(right)]
    head = "".join(element("th", _head(c), scope="col", class_=k) for c, k in zip(content.columns, kinds, strict=True))
    rows = "".join(
        element("tr", *(element("td", escape(number(v)), class_=k) for v, k in zip(row, kinds, strict=True)))
        for row in content.rows
    )
    named = element("caption", escape(content.title)) if caption and content.title else ""
    inside = element("table", named, element("thead", element("tr", head)), element("tbody", rows))
    # The script removes the tab stop if nothing scrolls.
    return element("div", inside, class_="scroll", tabindex=0)


def data_table(figure: AnyFigure, labels: Sequence[Sequence[str]] = ()) -> Table:
    """Return the numbers of a figure as a table; the `labels` of its points, if given, come first.

    >>> data_table(Histogram("H", "size", "samples", (0.0, 1.0), ("all",), ((3,),))).rows
    ((0.0, 1.0, 3),)
    """
    if isinstance(figure, Waterfall):
        rows = tuple((v.name, v.value, v.low, v.high) for v in figure.levels)
        return Table(figure.title, ("after", figure.y, "low", "high"), rows)
    if isinstance(figure, Histogram):
        columns = ("from", "to", *(n or figure.y for n in figure.names))
        cells = zip(figure.edges, figure.edges[1:], *figure.counts, strict=False)
        return Table(figure.title, columns, tuple(cells))
    spread = any(s.low or s.high for s in figure.series)
    rows_of: tuple[tuple[Any, ...], ...] = tuple(
        (s.name, s.x[j], s.y[j], *((b[j] if b else None for b in (s.low, s.high)) if spread else ()))
        for s in figure.series
        for j in range(len(s.x))
    )
    columns = ("series", figure.x or "x", figure.y or "y", *(("low", "high") if spread else ()))
    if labels:
        names = [name for of_series in labels for name in of_series]
        return Table(figure.title, ("name", *columns), tuple((n, *row) for n, row in zip(names, rows_of, strict=True)))
    if len(figure.series) == 1 and figure.kind != "matrix":
        return Table(figure.title, columns[1:], tuple(row[1:] for row in rows_of))
    return Table(figure.title, columns, rows_of)


def describe(figure: AnyFigure) -> str:
    """Describe the figure in one sentence, for screen readers.

    >>> describe(Waterfall("Accuracy", "%", ()))
    'A waterfall of 0 levels; the numbers are in the table below.'
    """
    if isinstance(figure, Waterfall):
        kind, content = "waterfall", f"{len(figure.levels)} levels"
        if figure.levels:
            content += f", from {number(figure.levels[0].value)} to {number(figure.levels[-1].value)} ({figure.y})"
    elif isinstance(figure, Histogram):
        kind, content = "histogram", f"{sum(map(sum, figure.counts)):,} values ({figure.x})"
    else:
        kind = {"bars": "bar chart", "line": "line chart", "steps": "step curve", "points": "scatter plot"}.get(
            figure.kind, figure.kind
        )
        content = f"{figure.y or 'values'} by {figure.x or 'name'} for {_listed([s.name for s in figure.series])}"
    return f"A {kind} of {content}; the numbers are in the table below."


def _listed(names: Sequence[str]) -> str:
    shown = [n for n in names if n][:6]
    return ", ".join(shown) + (" and others" if len(names) > 6 else "") if shown else "one series"


def _draw(
    figure: AnyFigure, lines: Sequence[ReferenceLine], labels: Sequence[Sequence[str]]
) -> tuple[str, int, dict[str, object]]:
    if isinstance(figure, Histogram):
        return histogram_chart(figure, lines)
    if isinstance(figure, Waterfall):
        return (*waterfall_chart(figure), {})
    if figure.kind == "bars":
        return (*bar_chart(figure), {})
    if figure.kind == "matrix":
        return (*matrix_chart(figure), {})
    return xy_chart(figure, lines, labels)


def _legend(figure: AnyFigure) -> str:
    if isinstance(figure, Waterfall):
        return ""
    names = figure.names if isinstance(figure, Histogram) else tuple(s.name for s in figure.series)
    if len(names) < 2 or (isinstance(figure, Figure) and figure.kind == "matrix"):
        return ""
    line = isinstance(figure, Figure) and figure.kind != "bars"
    tint = colour_classes(names)
    items = (element("li", legend_key(i, line, tint[i]), escape(name)) for i, name in enumerate(names))
    return element("ul", *items, class_="legend")


def _head(name: str) -> str:
    """Return a column heading as markup, in which a narrow screen may break long words."""
    return escape(name).replace("wards", "<wbr>wards")


def _kept(content: Table, column: int) -> str | None:
    """Return the CSS class that keeps a column on one line if all its cells are short, else None."""
    return "keep" if content.rows and all(len(str(row[column])) <= SHORT for row in content.rows) else None


def _data_details(content: Table) -> str:
    if not content.rows:
        return ""
    hidden = len(content.rows) - MOST_ROWS
    short = Table("", content.columns, content.rows[:MOST_ROWS])
    more = element("p", f"{hidden:,} more rows are not shown.", class_="note") if hidden > 0 else ""
    return element("details", element("summary", "Data"), table(short), more, class_="data")
