"""Horizontal charts with names on the left: bars, waterfalls and matrices."""

from collections.abc import Sequence

from brinell.report.charts.scales import AxisScale, are_whole, finite, number, span
from brinell.report.charts.svg import element, escape
from brinell.report.charts.types import Waterfall, colour_classes
from brinell.results.analyses import Figure, Series

WIDTH = 480
TOP, BOTTOM, RIGHT = 8, 42, 54
LETTER = 6.9  # mean width of a letter in pixels, at the font size of the style sheet
LONGEST = 150.0
MOST_CELLS_WITH_TEXT = 144
SLANT = 34  # space on the right for the last slanted name
DARKEST = 0.5  # largest opacity at which the text of a cell is readable in both themes


def bar_chart(figure: Figure) -> tuple[str, int]:
    """Draw groups of horizontal bars, one bar per series, with error bars; return SVG markup and height in pixels."""
    names = list(dict.fromkeys(str(x) for s in figure.series for x in s.x))
    count = max(len(figure.series), 1)
    thick = 18.0 if count == 1 else 14.0
    if len(names) * count > 60:
        thick = 7.0
    slot = thick * count + (9.0 if thick > 8 else 3.0)
    left, height = _left(names), TOP + slot * len(names)
    values = [v for s in figure.series for v in finite((*s.y, *s.low, *s.high))]
    scale = _scale([0.0, *values], figure.y, left)
    parts = [_axis(scale, figure.y, height)]
    share = "%" in figure.y  # percentages have one decimal
    tint = colour_classes([s.name for s in figure.series])
    for row, name in enumerate(names):
        y = TOP + row * slot
        parts.append(_name(name, left, y + slot / 2))
        for i, s in enumerate(figure.series):
            at = [j for j, x in enumerate(s.x) if str(x) == name]
            parts += [_bar(scale, s, j, tint[i], y + (slot - thick * count) / 2 + i * thick, thick, share) for j in at]
    return "".join(parts), int(height + BOTTOM)


def waterfall_chart(figure: Waterfall) -> tuple[str, int]:
    """Draw full bars for the first and last level, a floating bar for each drop; return SVG markup and height."""
    slot, thick = 30.0, 20.0
    first, *rest = figure.levels
    names = [first.name, *(level.name for level in rest), figure.last]
    left = _left(names)
    values = finite(v for level in figure.levels for v in (0.0, level.value, level.low, level.high))
    scale = _scale(values, figure.y, left)
    height = TOP + slot * len(names)
    rows = [(first.name, 0.0, first.value, first, "c0")]
    for before, level in zip(figure.levels, rest, strict=False):
        rows.append((level.name, level.value, before.value, level, "drop"))
    end = figure.levels[-1]
    rows.append((figure.last, 0.0, end.value, end, "c0 strong"))
    parts = [_axis(scale, figure.y, height)]
    for i, (name, start, stop, level, kind) in enumerate(rows):
        y, drop = TOP + i * slot + (slot - thick) / 2, kind == "drop"
        value = f"−{stop - start:.1f}" if drop and stop > start else f"{0.0 if drop else level.value:.1f}"
        interval = "" if level.low is None or level.high is None else f" [{level.low:.1f}, {level.high:.1f}]"
        tip = f"{name}: {value}; accuracy {level.value:.1f}{interval}" if drop else f"{name}: {value}{interval}"
        box = element(
            "rect", element("title", escape(tip)), class_=f"pt bar {kind}", x=min(scale(start), scale(stop)), y=y,
            width=max(abs(scale(stop) - scale(start)), 1.5), height=thick, rx=2,
            data_name=name, data_value=level.value, data_low=level.low, data_high=level.high, data_tip=tip,
        )  # fmt: skip
        whisker = "" if drop else _whisker(scale, level.low, level.high, y + thick / 2)
        edge = max(scale(stop), scale(level.high) if level.high is not None and not drop else 0.0)
        parts += [_name(name, left, y + thick / 2, strong=kind == "c0 strong"), box, whisker]
        parts.append(element("text", escape(value), class_="value", x=edge + 6, y=y + thick / 2, dy="0.35em"))
        if i < len(rows) - 1:
            link = scale(level.value)
            parts.append(element("line", class_="link", x1=link, x2=link, y1=y + thick, y2=y + slot))
    return "".join(parts), int(height + BOTTOM)


def matrix_chart(figure: Figure) -> tuple[str, int]:
    """Draw cells shaded by their value, one row per series; return SVG markup and height in pixels."""
    columns = list(dict.fromkeys(str(x) for s in figure.series for x in s.x))
    left = _left([s.name for s in figure.series])
    wide = (WIDTH - left - SLANT) / max(len(columns), 1)
    high = min(max(wide * 0.8, 14.0), 34.0)
    values = finite(v for s in figure.series for v in s.y)
    ends = min([0.0, *values]), max(values, default=1.0)
    small = len(columns) * len(figure.series) <= MOST_CELLS_WITH_TEXT
    heads, top = _heads(columns, left, wide)
    parts = [heads]
    for row, s in enumerate(figure.series):
        y = top + row * high
        parts.append(_name(s.name, left, y + high / 2))
        for x, value in zip(s.x, s.y, strict=True):
            place = left + columns.index(str(x)) * wide, y, wide, high
            parts.append(_cell(place, value, ends, f"{s.name}, {x}: {number(value)}", small))
    bottom = top + high * len(figure.series)
    parts.append(_centred(figure.x, left + (WIDTH - left - SLANT) / 2, bottom + 20))
    return "".join(parts), int(bottom + 30)


def _heads(columns: Sequence[str], left: float, wide: float) -> tuple[str, float]:
    """Return the column names as SVG markup, slanted if wider than a column, and their height in pixels."""
    longest = max([len(c) for c in columns], default=0)
    slanted = longest * LETTER > wide
    every = max(1, -(-16 // max(int(wide), 1))) if slanted else 1  # at least one line of text apart
    top = 26.0 if not slanted else 20 + min(longest, 14) * LETTER * 0.64
    parts = []
    for i in range(0, len(columns), every):
        x, text = left + (i + 0.5) * wide, escape(_short(columns[i], 14))
        turn = f"translate({x:.2f} {top - 8:.2f})" + (" rotate(-40)" if slanted else "")
        anchor = "start" if slanted else "middle"
        parts.append(element("text", text, class_="tick", transform=turn, text_anchor=anchor))
    return "".join(parts), top


def _cell(
    place: tuple[float, float, float, float], value: float, ends: tuple[float, float], tip: str, text: bool
) -> str:
    x, y, w, h = place
    good = bool(finite([value]))
    share = (value - ends[0]) / ((ends[1] - ends[0]) or 1.0) if good else 0.0
    shade = 0.04 + (DARKEST if text else 0.94) * share
    box = element(
        "rect", element("title", escape(tip)), class_="pt cell", x=x + 0.5, y=y + 0.5, width=w - 1, height=h - 1,
        fill_opacity=shade, data_value=value if good else None, data_tip=tip,
    )  # fmt: skip
    if not (text and good):
        return box
    shown = f"{value:.0f}" if abs(value) >= 10 or float(value).is_integer() else f"{value:.2g}"
    return box + element("text", shown, class_="cell-text", x=x + w / 2, y=y + h / 2, dy="0.35em", text_anchor="middle")


def _left(names: Sequence[str]) -> float:
    return min(max([len(name) for name in names], default=0) * LETTER + 14, LONGEST)


def _scale(values: Sequence[float], label: str, left: float) -> AxisScale:
    low, high = span(values, label)
    return AxisScale(low, high, left, WIDTH - RIGHT, are_whole(values, label))


def _axis(scale: AxisScale, label: str, height: float) -> str:
    count = 5 if max(abs(scale.low), abs(scale.high)) < 1e4 else 3  # long numbers need space
    parts = []
    for value, text in scale.ticks(count):
        x = scale(value)
        parts.append(element("line", class_="axis" if value == 0 else "grid", x1=x, x2=x, y1=TOP, y2=height))
        parts.append(element("text", text, class_="tick", x=x, y=height + 16, text_anchor="middle"))
    middle = (scale.start + scale.stop) / 2
    parts.append(_centred(label, middle, height + 35))
    return "".join(parts)


def _centred(text: str, x: float, y: float) -> str:
    return element("text", escape(text), class_="label", x=x, y=y, text_anchor="middle")


def _name(name: str, left: float, y: float, strong: bool = False) -> str:
    text = _short(name, int((left - 14) / LETTER + 0.5))
    full = element("title", escape(name)) if text != name else ""
    kind = "name strong" if strong else "name"
    return element("text", escape(text), full, class_=kind, x=left - 8, y=y, dy="0.35em", text_anchor="end")


def _short(text: str, most: int) -> str:
    return text if len(text) <= max(most, 1) else text[: max(most - 1, 1)] + "…"


def _bar(scale: AxisScale, s: Series, j: int, tint: str, y: float, thick: float, share: bool) -> str:
    value = s.y[j]
    low, high = (b[j] if b else None for b in (s.low, s.high))
    interval = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
    tip = f"{s.name + ', ' if s.name else ''}{s.x[j]}: {number(value)}{interval}"
    if not finite([value]):
        return element("text", "–", class_="value", x=scale(max(0.0, scale.low)) + 6, y=y + thick / 2, dy="0.35em")
    a, b = sorted((scale(max(0.0, scale.low) if scale.high > 0 else scale.high), scale(value)))
    box = element(
        "rect", element("title", escape(tip)), class_=f"pt bar {tint}", x=a, y=y + 0.5, width=max(b - a, 0.8),
        height=thick - 1, rx=2 if thick > 8 else 1, data_name=s.x[j], data_series=s.name, data_value=value,
        data_low=low, data_high=high, data_tip=tip,
    )  # fmt: skip
    whisker = _whisker(scale, low, high, y + thick / 2)
    if thick <= 8:
        return box + whisker
    edge = max([b, *(scale(v) for v in finite([high]))])
    text = element("text", escape(_brief(value, share)), class_="value", x=edge + 5, y=y + thick / 2, dy="0.35em")
    return box + whisker + text


def _brief(value: float, share: bool) -> str:
    return f"{value:.1f}" if share else number(round(value, 1) if abs(value) >= 1 else float(f"{value:.2g}"))


def _whisker(scale: AxisScale, low: float | None, high: float | None, y: float) -> str:
    if low is None or high is None or len(finite([low, high])) < 2:
        return ""
    a, b = scale(low), scale(high)
    return element(
        "path", class_="whisker", d=f"M{a:.2f} {y:.2f}H{b:.2f}M{a:.2f} {y - 3.5:.2f}v7M{b:.2f} {y - 3.5:.2f}v7"
    )
