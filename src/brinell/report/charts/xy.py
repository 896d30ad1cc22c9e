"""Charts on two axes that can be zoomed: lines, steps, points and histograms."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from brinell.report.charts.scales import AxisScale, are_whole, finite, number, span
from brinell.report.charts.svg import element, escape, path
from brinell.report.charts.types import Histogram, ReferenceLine, colour_classes
from brinell.results.analyses import Figure, Series

WIDTH, HEIGHT = 480, 300
LEFT, TOP, RIGHT, BOTTOM = 58, 20, 14, 46
PAD = 7.0  # space for markers at the edges
# One marker shape per series: colour is never the only difference.
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-4.6L4.4 3.4h-8.8z", "M0-5L5 0L0 5L-5 0z",
    "M-4.4-3.4h8.8L0 4.6z", "M-4-1.4h2.6v-2.6h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6z",
    "M-4.5-2.5L0-4.5L4.5-2.5L3 4h-6z", "M-4.5 0L-2-4h4L4.5 0L2 4h-4z",
)  # fmt: skip
# Above this number of points markers are invisible; they still react to the pointer.
MOST_MARKERS = {"line": 40, "steps": 12}


@dataclass(frozen=True)
class XYAxes:
    """The x and y axes in pixels of the plotting area; `names` are the categories of a categorical x axis."""

    x: AxisScale
    y: AxisScale
    names: tuple[str, ...] = ()

    def at(self, x: float | str) -> float:
        """Return the x position of a value or category in pixels."""
        return self.x(self.names.index(str(x)) if self.names else float(x))


def xy_chart(
    figure: Figure, lines: Sequence[ReferenceLine] = (), labels: Sequence[Sequence[str]] = ()
) -> tuple[str, int, dict[str, object]]:
    """Draw lines, steps or points with bands or error bars; return SVG markup, height and attributes for zooming."""
    axes = _figure_axes(figure, lines)
    parts = [_diagonal(axes)] if figure.diagonal else []
    for i, s in enumerate(figure.series):
        parts.append(_series(axes, s, i, figure.kind, labels[i] if labels else ()))
    parts += [_reference_line(axes, line) for line in lines]
    return _with_axes(axes, "".join(parts), figure.x, figure.y)


def histogram_chart(figure: Histogram, lines: Sequence[ReferenceLine] = ()) -> tuple[str, int, dict[str, object]]:
    """Draw stacked bars between bin edges; return SVG markup, height and attributes for zooming."""
    tops = [sum(column) for column in zip(*figure.counts, strict=True)]
    low, high = figure.edges[0], figure.edges[-1]
    axes = _axes((low, high), span([0.0, *map(float, tops)]), (), whole=True)
    parts, base = [], [0.0] * len(tops)
    for tint, name, counts in zip(colour_classes(figure.names), figure.names, figure.counts, strict=True):
        for j, count in enumerate(counts):
            if count:
                ends = figure.edges[j], figure.edges[j + 1]
                parts.append(_column(axes, ends, base[j], count, tint, name))
                base[j] += count
    parts += [_reference_line(axes, line) for line in lines]
    return _with_axes(axes, "".join(parts), figure.x, figure.y)


def legend_key(i: int, line: bool, tint: str = "") -> str:
    """Return the symbol of a series in the legend as SVG: a line with its marker, or a bar."""
    colour = f"c{i % 8}"
    if line:
        marker = element("path", class_=f"dot {colour}", d=SHAPES[i % len(SHAPES)], transform="translate(13 7)")
        mark = element("path", class_=f"line {colour}", d="M0 7H26") + marker
    else:
        mark = element("path", class_=f"bar {tint or colour}", d="M5 1h16v12h-16z")
    return element("svg", mark, viewBox="0 0 26 14", width=26, height=14, aria_hidden="true")


def _figure_axes(figure: Figure, lines: Sequence[ReferenceLine]) -> XYAxes:
    every = [x for s in figure.series for x in s.x]
    names = tuple(dict.fromkeys(map(str, every))) if any(isinstance(x, str) for x in every) else ()
    ys = [v for s in figure.series for v in finite((*s.y, *s.low, *s.high))]
    xs = finite([*every, *(m.x for m in lines)])
    if figure.diagonal:
        both = span([*xs, *ys], figure.y)
        return _axes(both, both, names)
    if names:
        across = (-0.3, len(names) - 0.7)
    else:
        across = (min(xs), max(xs)) if xs and min(xs) < max(xs) else span(xs)
    return _axes(across, span(ys, figure.y), names, are_whole(ys, figure.y))


def _axes(x: tuple[float, float], y: tuple[float, float], names: tuple[str, ...], whole: bool = False) -> XYAxes:
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return XYAxes(AxisScale(*x, PAD, wide - PAD), AxisScale(*y, high - PAD, PAD, whole), names)


def _series(axes: XYAxes, s: Series, i: int, kind: str, labels: Sequence[str] = ()) -> str:
    rows = [j for j in range(len(s.x)) if finite([s.y[j]]) and (axes.names or finite([s.x[j]]))]
    points = [(axes.at(s.x[j]), axes.y(s.y[j])) for j in rows]
    colour = f"c{i % 8}"
    parts = []
    bounded = [j for j in rows if s.low and s.high and len(finite([s.low[j], s.high[j]])) == 2]
    if bounded:
        low = [(axes.at(s.x[j]), axes.y(s.low[j])) for j in bounded]
        high = [(axes.at(s.x[j]), axes.y(s.high[j])) for j in bounded]
        if kind == "points":
            parts += [
                element("path", class_=f"line {colour} error", d=path([a, b])) for a, b in zip(low, high, strict=True)
            ]
        else:
            low, high = (_stairs(e) if kind == "steps" else e for e in (low, high))
            parts.append(element("path", class_=f"band {colour}", d=path([*high, *low[::-1]], close=True)))
    if kind != "points" and points:
        parts.append(element("path", class_=f"line {colour}", d=path(_stairs(points) if kind == "steps" else points)))
    parts += [
        _point(s, j, at, i, kind, len(rows), labels[j] if labels else None) for j, at in zip(rows, points, strict=True)
    ]
    return element("g", *parts, class_="series")


def _stairs(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a right-continuous step function."""
    corners = points[:1]
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)]
    return corners


def _point(s: Series, j: int, at: tuple[float, float], i: int, kind: str, count: int, label: str | None = None) -> str:
    low, high = (b[j] if b else None for b in (s.low, s.high))
    interval = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
    named = ", ".join(name for name in (label, s.name) if name)
    tip = f"{named + ', ' if named else ''}{number(s.x[j])}: {number(s.y[j])}{interval}"
    quiet = count > MOST_MARKERS.get(kind, count)
    return element(
        "g",
        element("title", escape(tip)),
        element("path", class_=f"dot c{i % 8}", d=SHAPES[i % len(SHAPES)]),
        class_="pt quiet" if quiet else "pt",
        transform=f"translate({at[0]:.2f} {at[1]:.2f})",
        data_cx=at[0], data_cy=at[1], data_series=s.name, data_x=s.x[j], data_y=s.y[j],
        data_low=low, data_high=high, data_label=label, data_tip=tip,
    )  # fmt: skip


def _column(axes: XYAxes, ends: tuple[float, float], base: float, count: int, tint: str, name: str) -> str:
    a, b = (axes.x(e) for e in ends)
    top = axes.y(base + count)
    tip = f"{name + ', ' if name else ''}{number(ends[0])} to {number(ends[1])}: {number(count)}"
    return element(
        "rect", element("title", escape(tip)), class_=f"pt bar {tint}", x=a, y=top, width=max(b - a, 0.3),
        height=axes.y(base) - top, data_series=name, data_from=ends[0], data_to=ends[1], data_value=count, data_tip=tip,
    )  # fmt: skip


def _diagonal(axes: XYAxes) -> str:
    ends = [(axes.x(v), axes.y(v)) for v in (axes.x.low, axes.x.high)]
    return element("path", class_="mark", d=path(ends))


def _reference_line(axes: XYAxes, line: ReferenceLine) -> str:
    if not axes.x.low <= line.x <= axes.x.high:
        return ""
    x = axes.x(line.x)
    late = x > axes.x.start + 0.7 * (axes.x.stop - axes.x.start)
    text = element(
        "text", escape(line.name), class_="tag", x=-5 if late else 5, dy="0.9em", text_anchor="end" if late else "start"
    )
    tag = element("g", text, class_="pinned", transform=f"translate({x:.2f} 0)", data_cx=x, data_cy=0)
    return element("line", class_="mark", x1=x, x2=x, y1=0, y2=HEIGHT - TOP - BOTTOM) + tag


def _with_axes(axes: XYAxes, inside: str, x: str, y: str) -> tuple[str, int, dict[str, object]]:
    """Add grid, ticks and labels to a plot, a nested SVG that can be zoomed; return markup, height and attributes."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = []
    for value, text in axes.y.ticks():
        at = TOP + axes.y(value)
        parts.append(element("line", class_="grid", x1=LEFT, x2=LEFT + wide, y1=at, y2=at))
        parts.append(element("text", text, class_="tick", x=LEFT - 8, y=at, dy="0.35em", text_anchor="end"))
    parts.append(element("line", class_="axis", x1=LEFT, x2=LEFT + wide, y1=TOP + high, y2=TOP + high))
    parts.append(element("g", *_ticks_below(axes), class_="ticks-x"))
    box = f"0 0 {wide} {high}"
    plot = {"x": LEFT, "y": TOP, "width": wide, "height": high, "viewBox": box, "preserveAspectRatio": "none"}
    parts.append(element("svg", inside, class_="plot-area", **plot))
    parts.append(element("text", escape(x), class_="label", x=LEFT + wide / 2, y=HEIGHT - 8, text_anchor="middle"))
    turned = f"translate(15 {TOP + high / 2}) rotate(-90)"
    parts.append(element("text", escape(y), class_="label", transform=turned, text_anchor="middle"))
    zoom: dict[str, object] = {} if axes.names else {
        "data_zoom": f"{axes.x.low!r} {axes.x.high!r} {axes.x.start} {axes.x.stop} {LEFT} {TOP} {wide} {high}"
    }  # fmt: skip
    return "".join(parts), HEIGHT, zoom


def _ticks_below(axes: XYAxes) -> list[str]:
    y = HEIGHT - BOTTOM + 17
    if axes.names:
        fits = max(int((axes.x.stop - axes.x.start) / len(axes.names) / 7), 3)
        texts = [(axes.x(i), n if len(n) <= fits else n[: fits - 1] + "…") for i, n in enumerate(axes.names)]
    else:
        texts = [(axes.x(v), text) for v, text in axes.x.ticks()]
    return [element("text", escape(t), class_="tick", x=LEFT + at, y=y, text_anchor="middle") for at, t in texts]
