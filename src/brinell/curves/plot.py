"""Draw robustness curves with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from brinell.curves.class_distances import ClassDistances
from brinell.curves.curve import Curve
from brinell.report.charts.matplotlib_style import COLOURS, check_plot_path, load_pyplot, reproducible_style, save

# Classes whose labels and distances are written into the picture of pairs.
MOST_NAMED = 12
UNITS = {
    "Linf": "largest change of a value",
    "L2": "Euclidean distance",
    "L1": "sum of changes",
    "L0": "values changed",
}


def plot(
    curves: Sequence[Curve], path: Path, *, marks: Sequence[float] = (), title: str = "", limit: float | None = None
) -> Path:
    """Draw the robust accuracy by radius, one panel per norm and one colour per model; `marks` are dashed lines."""
    check_plot_path(path, "Curve.save writes .csv and .json.")
    plt = load_pyplot()
    norms = list(dict.fromkeys(c.norm for c in curves))
    names = list(dict.fromkeys(c.name for c in curves))
    with reproducible_style(plt, font_size=11):
        figure, axes = plt.subplots(1, len(norms), figsize=(1.5 + 5.5 * len(norms), 4.4), squeeze=False)
        for axis, norm in zip(axes[0], norms, strict=True):
            shown = [c for c in curves if c.norm == norm]
            end = limit or _limit(shown)
            for c in shown:
                _draw(axis, c, COLOURS[names.index(c.name) % len(COLOURS)], end)
            # With several norms, a radius of one norm is usually outside the panel of another, or close to 0.
            least = end / 20 if len(norms) > 1 else 0.0
            _dress(axis, norm, shown, [m for m in marks if least <= m <= end], end)
        axes[0][0].set_ylabel("robust accuracy (%)")
        if title:
            figure.suptitle(title)
        return save(plt, figure, path)


def _limit(curves: Sequence[Curve]) -> float:
    """Return the largest radius to show: 95 % of the broken samples of the most robust model break within it."""
    ends = [np.quantile(c.distances[np.isfinite(c.distances)], 0.95) for c in curves if np.isfinite(c.distances).any()]
    return float(max(ends, default=1.0)) or 1.0


def _draw(axis: Any, c: Curve, colour: str, end: float) -> None:
    x, broken = c.steps()
    x, y = np.append(x, max(end, float(x[-1]))), 1 - np.append(broken, broken[-1])
    half, name = c.band(), c.name or "model"
    note = f", {c.unresolved} unresolved" if c.unresolved else ""
    axis.step(x, 100 * y, where="post", color=colour, linewidth=2, label=f"{name} (n = {c.n}{note})")
    low, high = np.clip(y - half, 0, 1), np.clip(y + half, 0, 1)
    axis.fill_between(x, 100 * low, 100 * high, step="post", color=colour, alpha=0.15, linewidth=0)
    if c.certified is not None:
        _draw_certified(axis, c, colour, x[-1])
    axis.plot([0], [100 * y[0]], "o", color=colour, markersize=5, clip_on=False, zorder=5)


def _draw_certified(axis: Any, c: Curve, colour: str, end: float) -> None:
    """Draw the share of samples that are proved to be robust, and fill what is open above it."""
    radii = np.unique(np.concatenate([c.steps()[0], *([] if c.certified is None else [c.certified]), [0.0, end]]))
    # A sample is proved up to its radius, this included: the curve jumps right after it.
    after = np.nextafter(radii, np.inf)
    low, high = (np.array([100 * float(f(r)) for r in after]) for f in (c.certified_accuracy, c.accuracy))
    axis.step(radii, low, where="post", color=colour, linewidth=1.5, linestyle=":", label="proved to be robust")
    axis.fill_between(
        radii, low, high, step="post", facecolor="none", edgecolor=colour, alpha=0.35, hatch="///", linewidth=0
    )


def _dress(axis: Any, norm: str, curves: Sequence[Curve], marks: Sequence[float], end: float) -> None:
    axis.set_xlim(0, end)
    axis.set_ylim(0, 100)
    axis.set_xlabel(f"size of the perturbation, {norm} ({UNITS.get(norm, norm)})")
    axis.grid(alpha=0.3)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    for mark in marks:
        axis.axvline(mark, color="0.35", linestyle="--", linewidth=1)
        text = (
            f"{mark * 255:.0f}/255" if norm == "Linf" and abs(mark * 255 - round(mark * 255)) < 1e-6 else f"{mark:.3g}"
        )
        axis.annotate(
            f"eps = {text}", (mark, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9
        )
    legend_title = "dot at 0: clean accuracy\nband: 95 % confidence"
    axis.legend(loc="upper right", frameon=True, fontsize=9, title=legend_title, title_fontsize=8)


def plot_distances(found: Sequence[ClassDistances], path: Path) -> Path:
    """Draw, in one panel per norm, the share of samples whose nearest sample of another class is within a distance.

    A second row of panels shows the smallest distances between the classes of the first data set, if measured.
    """
    check_plot_path(path, "ClassDistances.save writes .csv.")
    plt = load_pyplot()
    first = found[0].nearest
    with_pairs = [(f.norm, f.pairs) for f in first if f.pairs is not None]
    rows = 2 if with_pairs else 1
    with reproducible_style(plt, font_size=11):
        figure, axes = plt.subplots(rows, len(first), figsize=(1 + 4.8 * len(first), 4.4 * rows), squeeze=False)
        for axis, norm in zip(axes[0], (f.norm for f in first), strict=True):
            for k, data in enumerate(found):
                kept = np.sort(data[norm].kept)
                share = 100 * np.arange(1, len(kept) + 1) / max(len(kept), 1)
                axis.step(kept, share, where="post", color=COLOURS[k % len(COLOURS)], linewidth=2, label=data.name)
            axis.set_xlabel(f"distance to the nearest sample of another class, {norm}")
            axis.set_xlim(left=0)
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.3)
            for spine in ("top", "right"):
                axis.spines[spine].set_visible(False)
        axes[0][0].set_ylabel("samples (%)")
        axes[0][0].legend(fontsize=9)
        for axis, (norm, pairs) in zip(axes[-1], with_pairs, strict=False):
            _draw_pairs(axis, norm, pairs, found[0].class_labels)
        return save(plt, figure, path)


def _draw_pairs(axis: Any, norm: str, pairs: npt.NDArray[np.float64], labels: Sequence[int]) -> None:
    values = np.where(np.isfinite(pairs), pairs, np.nan)
    image = axis.imshow(values, cmap="Blues_r")
    axis.figure.colorbar(image, ax=axis, shrink=0.8)
    axis.set_title(f"smallest distance between classes, {norm}", loc="left", fontsize=11)
    if len(values) <= MOST_NAMED:
        axis.set_xticks(range(len(values)), labels)
        axis.set_yticks(range(len(values)), labels)
        for (a, b), v in np.ndenumerate(values):
            if a != b and np.isfinite(v):
                dark = v < (np.nanmin(values) + np.nanmax(values)) / 2
                axis.text(b, a, f"{v:.3g}", ha="center", va="center", fontsize=6, color="white" if dark else "black")
