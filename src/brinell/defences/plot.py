"""Draw the measured defences with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brinell.defences.measure import DefenceResult
from brinell.reliability.binarization.result import PASS
from brinell.report.charts.matplotlib_style import COLOURS, check_plot_path, load_pyplot, reproducible_style, save
from brinell.results import Proportion

STRONGER, ORIGINAL = COLOURS[:2]


def plot(rows: Sequence[DefenceResult], path: Path) -> Path:
    """Draw two panels, scores in the binarization test and robust accuracies, with a line per defence; return the path.

    Triangles are defences with a detector: filled for the worse of the two tests, empty for the better test.

    Reference: Zimmermann et al. 2022, Figures 2 and 4.
    """
    check_plot_path(path, "Use --json for the numbers.")
    plt = load_pyplot()
    with reproducible_style(plt):
        figure, axes = plt.subplots(1, 2, figsize=(11, 1.4 + 0.34 * len(rows)), sharey=True, squeeze=False)
        left, right = axes[0]
        for i, row in enumerate(rows):
            for measured, colour, lift in ((row.original, ORIGINAL, -0.15), (row.stronger, STRONGER, 0.15)):
                several = len(measured.tests) > 1
                for test in measured.tests.values():
                    _mark(left, test.level.score, i + lift, colour, several, test.kind == measured.test.kind)
                _mark(right, measured.robust, i + lift, colour, several)
        left.axvline(100 * PASS, color="0.35", linestyle="--", linewidth=1)
        left.set_yticks(range(len(rows)), [row.defence.name for row in rows])
        left.invert_yaxis()
        left.set_xlabel(f"known adversarials found (%), pass mark {100 * PASS:g}")
        right.set_xlabel("robust accuracy (%)")
        for axis in (left, right):
            axis.set_xlim(-3, 103)
            axis.grid(alpha=0.3)
        right.plot([], [], "o", color=ORIGINAL, label="original evaluation")
        right.plot([], [], "o", color=STRONGER, label="stronger evaluation")
        if any(len(row.original.tests) > 1 for row in rows):
            right.plot([], [], "^", color="0.35", label="with a detector: worse of two tests")
        right.legend(loc="lower right", fontsize=9)
        return save(plt, figure, path)


def _mark(axis: Any, p: Proportion, at: float, colour: str, guarded: bool, main: bool = True) -> None:
    """Draw a dot (a triangle if `guarded`) with its 95 % interval; if not `main`, an empty mark without interval."""
    if not p.n:
        return
    if main:
        axis.plot([100 * p.low, 100 * p.high], [at, at], color=colour, linewidth=1.5, alpha=0.5)
    fill = colour if main else "none"
    axis.plot([100 * p.value], [at], "^" if guarded else "o", color=colour, markersize=5, markerfacecolor=fill)
