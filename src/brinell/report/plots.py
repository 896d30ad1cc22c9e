"""The figures of a report, drawn with matplotlib for notebooks and papers; each function returns the axes."""

from collections.abc import Sequence
from typing import Any

from brinell.errors import InputError
from brinell.report import figures
from brinell.report.charts.matplotlib_style import COLOURS, load_pyplot
from brinell.report.charts.types import Histogram, Waterfall, colour_classes
from brinell.report.outcomes import sample_outcomes
from brinell.results import Run
from brinell.results.analyses import Figure

# Markers and dashes distinguish series in print without colours.
MARKERS, DASHES = "os^Dv*p", ("-", "--", ":", "-.")


def accuracy(run: Run, axes: Any = None) -> Any:
    """Draw the accuracy after each attack."""
    return draw(figures.stages(run), axes)


def classes(run: Run, axes: Any = None, names: Sequence[str] = ()) -> Any:
    """Draw the clean and the robust accuracy of every class."""
    return draw(_drawable(figures.classes(sample_outcomes(run), figures.class_names(run, names)), run), axes)


def margins(run: Run, axes: Any = None) -> Any:
    """Draw a histogram of the margins of the clean inputs."""
    return draw(_drawable(figures.margins(sample_outcomes(run)), run), axes)


def distances(run: Run, axes: Any = None) -> Any:
    """Draw the robustness curve if the threat has no radius, else a histogram of the adversarials' distances."""
    outcomes = sample_outcomes(run)
    if figures.minimum_norm(run):
        return draw(figures.curve([("", outcomes)], str(run.identity.threat.norm)), axes)
    return draw(_drawable(figures.distances(outcomes), run), axes)


def cost(run: Run, axes: Any = None) -> Any:
    """Draw the number of forward and backward passes of every stage."""
    return draw(figures.costs(run)[0], axes)


def draw(figure: Figure | Waterfall | Histogram, axes: Any = None) -> Any:
    """Draw a figure on the given axes, or on new axes, and return the axes."""
    if axes is None:
        axes = load_pyplot(shown=True).subplots(figsize=(6.4, 4.0))[1]
    if isinstance(figure, Waterfall):
        _waterfall(axes, figure)
    elif isinstance(figure, Histogram):
        _histogram(axes, figure)
    elif figure.kind == "bars":
        _bars(axes, figure)
    elif figure.kind == "matrix":
        _matrix(axes, figure)
    else:
        _xy(axes, figure)
    axes.set_title(figure.title, fontsize="medium", loc="left")
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    return axes


def _drawable(figure: Any, run: Run) -> Any:
    if figure is None:
        raise InputError(
            expected="samples that this figure can show",
            got=f"no such samples in {run.path}",
            remedy="Write the report of the Run, which says why: brinell report FOLDER.",
        )
    return figure


def _waterfall(axes: Any, figure: Waterfall) -> None:
    first, *rest = figure.levels
    end = figure.levels[-1]
    names = [first.name, *(level.name for level in rest), figure.last]
    axes.barh([0, len(names) - 1], [first.value, end.value], color=COLOURS[0])
    for place, (level, drop) in enumerate(zip(rest, figure.drops, strict=True), 1):
        axes.barh(place, drop, left=level.value, color=COLOURS[1])
    for place, level in ((0, first), (len(names) - 1, end)):
        if level.low is not None and level.high is not None:
            ends = [[level.value - level.low], [level.high - level.value]]
            axes.errorbar(level.value, place, xerr=ends, color="0.15", capsize=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(figure.y)


def _colour(tint: str) -> dict[str, Any]:
    """Return the matplotlib colours of a colour class."""
    if tint == "clean":
        return {"color": "#A6CEE3", "edgecolor": COLOURS[0]}
    return {"color": COLOURS[int(tint[1:]) % len(COLOURS)]}


def _bars(axes: Any, figure: Figure) -> None:
    tint = colour_classes([s.name for s in figure.series])
    names = list(dict.fromkeys(str(x) for s in figure.series for x in s.x))
    thick = 0.8 / max(len(figure.series), 1)
    for i, s in enumerate(figure.series):
        places = [names.index(str(x)) + (i - (len(figure.series) - 1) / 2) * thick for x in s.x]
        ends = None
        if s.low and s.high:
            below, above = zip(s.y, s.low, strict=True), zip(s.high, s.y, strict=True)
            ends = [[b - a for b, a in side] for side in (below, above)]
        axes.barh(places, s.y, thick, xerr=ends, label=s.name, ecolor="0.15", **_colour(tint[i]))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(figure.y)
    _legend(axes, len(figure.series))


def _histogram(axes: Any, figure: Histogram) -> None:
    left, right = figure.edges[:-1], figure.edges[1:]
    base = [0.0] * len(left)
    for i, (name, counts) in enumerate(zip(figure.names, figure.counts, strict=True)):
        width = [b - a for a, b in zip(left, right, strict=True)]
        axes.bar(left, counts, width, bottom=base, align="edge", color=COLOURS[i % len(COLOURS)], label=name)
        base = [b + c for b, c in zip(base, counts, strict=True)]
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    _legend(axes, len(figure.names))


def _xy(axes: Any, figure: Figure) -> None:
    for i, s in enumerate(figure.series):
        style = {"color": COLOURS[i % len(COLOURS)], "label": s.name or None}
        step = "post" if figure.kind == "steps" else None
        if figure.kind == "points":
            axes.plot(s.x, s.y, MARKERS[i % len(MARKERS)], **style)
        else:
            drawstyle = "steps-post" if step else "default"
            axes.plot(s.x, s.y, linestyle=DASHES[i % len(DASHES)], drawstyle=drawstyle, **style)
        if s.low and s.high:
            axes.fill_between(s.x, s.low, s.high, step=step, color=style["color"], alpha=0.15, linewidth=0)
    if figure.diagonal:
        axes.axline((0, 0), slope=1, color="0.5", linestyle="--", linewidth=1)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(alpha=0.3)
    _legend(axes, len(figure.series))


def _matrix(axes: Any, figure: Figure) -> None:
    columns = list(dict.fromkeys(str(x) for s in figure.series for x in s.x))
    values = [dict(zip(map(str, s.x), s.y, strict=True)) for s in figure.series]
    axes.imshow([[row.get(c, float("nan")) for c in columns] for row in values], cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    axes.set_yticks(range(len(values)), [s.name for s in figure.series])
    axes.set_xlabel(figure.x)


def _legend(axes: Any, count: int) -> None:
    if count > 1:
        axes.legend(frameon=False, fontsize="small")
