"""Draw the figures of an analysis with matplotlib."""

from pathlib import Path
from typing import Any

import numpy as np

from brinell.errors import InputError
from brinell.report.charts.matplotlib_style import COLOURS, check_plot_path, load_pyplot, reproducible_style, save
from brinell.results.analyses import AnalysisReport, Figure, Series

# If the names have more characters than this in total, they are slanted.
CROWDED = 45
# With more series than this, the legend of a figure stands on its right.
FEW_SERIES = 6
# Lines that share a colour differ in style.
LINES = ("-", "--", ":")
# With more models than this, the points of a figure have no names.
MOST_NAMES = 12


def plot(report: AnalysisReport, path: Path) -> Path:
    """Draw the report's figures side by side into one image file, and return its path."""
    check_plot_path(path, "Give the file one of these endings; `report.save(folder)` writes the numbers.")
    if not report.figures:
        raise InputError(
            expected="a report with a figure",
            got=f"the report {report.kind} without a figure",
            remedy="Read `report.tables` instead.",
        )
    plt = load_pyplot()
    with reproducible_style(plt):
        widths = [_width(f) for f in report.figures]
        panels, axes = plt.subplots(
            1, len(widths), figsize=(sum(widths), 4.4), squeeze=False, gridspec_kw={"width_ratios": widths}
        )
        for axis, figure in zip(axes[0], report.figures, strict=True):
            _panel(axis, figure)
        return save(plt, panels, path)


def _width(figure: Figure) -> float:
    """Return the width of one figure in inches: bars and matrices need room for the names on their x axis."""
    points = max((len(s.x) for s in figure.series), default=0)
    if figure.kind == "bars":
        return min(5.0 + 0.18 * points * len(figure.series), 16.0)
    if figure.kind == "matrix":
        return min(3.5 + 0.8 * points, 12.0)
    return 7.2 if _long_legend(figure) else 5.0


def _panel(axis: Any, figure: Figure) -> None:
    axis.set_title(figure.title, loc="left", fontsize=11)
    axis.set_xlabel(figure.x)
    axis.set_ylabel(figure.y)
    if figure.kind == "matrix":
        _matrix(axis, figure)
        return
    if figure.diagonal:
        axis.axline((0, 0), slope=1, color="0.35", linestyle="--", linewidth=1)
    draw = _bars if figure.kind == "bars" else _curves
    draw(axis, figure)
    axis.grid(alpha=0.3, axis="y" if figure.kind == "bars" else "both")
    axis.set_axisbelow(True)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    if len(figure.series) > 1 and not _one_point_each(figure):
        _legend(axis, figure)


def _legend(axis: Any, figure: Figure) -> None:
    if _long_legend(figure):
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False)
    else:
        axis.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.99), ncols=2, frameon=False)


def _long_legend(figure: Figure) -> bool:
    return figure.kind in ("line", "steps") and len(figure.series) > FEW_SERIES


def _bars(axis: Any, figure: Figure) -> None:
    names = list(dict.fromkeys(str(x) for s in figure.series for x in s.x))
    width = 0.8 / max(len(figure.series), 1)
    for i, s in enumerate(figure.series):
        at = np.array([names.index(str(x)) for x in s.x]) + (i - (len(figure.series) - 1) / 2) * width
        axis.bar(
            at, s.y, width, yerr=_errors(s), color=COLOURS[i % len(COLOURS)], label=s.name, capsize=2,
            error_kw={"elinewidth": 1},
        )  # fmt: skip
    _names(axis, names)


def _names(axis: Any, names: list[str]) -> None:
    slant = sum(map(len, names)) > CROWDED
    axis.set_xticks(range(len(names)), names, rotation=35 if slant else 0, ha="right" if slant else "center")


def _one_point_each(figure: Figure) -> bool:
    """Return whether every series has one point, as in figures over many models, where names are beside the points."""
    return figure.kind == "points" and all(len(s.x) == 1 for s in figure.series)


def _curves(axis: Any, figure: Figure) -> None:
    if _one_point_each(figure) and len(figure.series) <= MOST_NAMES:
        xs = [float(s.x[0]) for s in figure.series]
        for s, x in zip(figure.series, xs, strict=True):
            side = ("right", -4) if 2 * x > min(xs) + max(xs) else ("left", 4)  # names stay inside the panel
            axis.annotate(s.name, (x, s.y[0]), xytext=(side[1], 4), textcoords="offset points", fontsize=8, ha=side[0])
    for i, s in enumerate(figure.series):
        colour, style = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
        if figure.kind == "steps":
            axis.step(s.x, s.y, where="post", color=colour, linestyle=style, label=s.name)
            if s.low and s.high:
                axis.fill_between(s.x, s.low, s.high, step="post", color=colour, alpha=0.15, linewidth=0)
        else:
            line = "none" if figure.kind == "points" else style
            axis.errorbar(
                s.x, s.y, yerr=_errors(s), fmt="o", linestyle=line, color=colour, label=s.name, capsize=2,
                markersize=4, elinewidth=1,
            )  # fmt: skip


def _errors(s: Series) -> Any:
    if not (s.low and s.high):
        return None
    return np.clip([np.subtract(s.y, s.low), np.subtract(s.high, s.y)], 0, None)


def _matrix(axis: Any, figure: Figure) -> None:
    values = np.array([s.y for s in figure.series], dtype=float)
    axis.imshow(values, cmap="Blues", aspect="auto", vmin=min(0.0, float(values.min())), vmax=max(100.0, values.max()))
    _names(axis, [str(x) for x in figure.series[0].x])
    axis.set_yticks(range(len(figure.series)), [s.name for s in figure.series])
    dark = (values.max() + values.min()) / 2 if np.ptp(values) else values.max() / 2
    for (row, column), v in np.ndenumerate(values):
        axis.text(column, row, f"{v:.0f}", ha="center", va="center", color="white" if v > max(dark, 55) else "black")
