"""Draw theorem-1.svg, theorem-2.svg and example-1.svg for docs/explanation/curves-and-norms.md, from closed forms.

Usage: python docs/images/theorems.py FOLDER    (needs matplotlib)
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from brinell.report.charts.matplotlib_style import COLOURS, reproducible_style, save

BLUE, ORANGE = COLOURS[0], "#d55e00"


def steps(axis: Any, distances: Any, end: float, colour: str, label: str) -> None:
    """Draw the share of samples with at most a distance."""
    d = np.sort(distances)
    d = d[d <= end]
    y = 100 * np.arange(1, len(d) + 1) / len(distances)
    x, y = np.concatenate([[0], d, [end]]), np.concatenate([[0], y, y[-1:]])
    axis.step(x, y, where="post", color=colour, linewidth=2, label=label)


def dress(axis: Any, title: str, x: str) -> None:
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_xlabel(x)
    axis.set_ylabel("samples that can be broken (%)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)


def theorem_1(path: Path) -> None:
    first, second = [1.0, 3.0], [2.0, 4.0]
    a = np.repeat([(t + u) / 2 for t, u in zip(first, second, strict=True)], 2)
    b = np.concatenate([[first[0] / 2], np.repeat([(u + t) / 2 for u, t in zip(second, first[1:], strict=False)], 2)])
    far = np.full(5, 99.0)
    with reproducible_style(plt, font_size=11):
        figure, axis = plt.subplots(figsize=(6.4, 4.0))
        steps(axis, np.concatenate([a, far]), 4.5, BLUE, "A, more robust at 1 and 3")
        steps(axis, np.concatenate([b, far, [99.0]]), 4.5, ORANGE, "B, more robust at 2 and 4")
        for t in (*first, *second):
            axis.axvline(t, color=BLUE if t in first else ORANGE, linestyle="--", linewidth=1)
        dress(axis, "Theorem 1", "radius")
        save(plt, figure, path)


def theorem_2(path: Path) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=20), rng.normal(size=(500, 20))
    size = np.abs(x @ w)
    norms = {"Linf": 1, "L2": 2, "L1": np.inf}
    with reproducible_style(plt, font_size=11):
        figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.0))
        for i, (name, q) in enumerate(norms.items()):
            d, c = size / np.linalg.norm(w, q), np.linalg.norm(w, q) / np.linalg.norm(w, 2)
            steps(axes[0], d, 6.0, COLOURS[i], name)
            axes[1].step(
                np.sort(c * d), 100 * np.arange(1, 501) / 500, where="post", color=COLOURS[i], label=name,
                linewidth=6 - 2 * i, alpha=0.7,
            )  # fmt: skip
        dress(axes[0], "one linear classifier in three norms", "radius")
        dress(axes[1], "Theorem 2: the same curves, rescaled", "radius · ‖w‖_q / ‖w‖₂")
        save(plt, figure, path)


def example_1(path: Path) -> None:
    points = np.array([(1.0, 0.8 * 2**0.5 - 1), (1.0, 1.2 * 2**0.5 - 1)])
    classifiers = {"blue": np.array([1.0, 0.0]), "orange": np.array([1.0, 1.0]) / 2**0.5}
    with reproducible_style(plt, font_size=11):
        figure, axes = plt.subplots(1, 3, figsize=(15, 4.2))
        for sign, marker in ((1, "o"), (-1, "s")):
            axes[0].plot(*(sign * points).T, marker, color="0.25", linestyle="none")
        axes[0].axline((0, 0), (0, 1), color=BLUE, linewidth=2)
        axes[0].axline((0, 0), (1, -1), color=ORANGE, linewidth=2)
        axes[0].set_title("two classes and two boundaries", loc="left", fontsize=11)
        axes[0].set_xlim(-1.5, 1.5)
        axes[0].set_ylim(-1.5, 1.5)
        axes[0].set_aspect("equal")
        for axis, (norm, q) in zip(axes[1:], (("Linf", 1), ("L2", 2)), strict=True):
            for (name, w), colour in zip(classifiers.items(), (BLUE, ORANGE), strict=True):
                steps(axis, np.abs(points @ w) / np.linalg.norm(w, q), 1.4, colour, name)
            dress(axis, norm, "radius")
        save(plt, figure, path)


def main(folder: str) -> None:
    for name, draw in (("theorem-1", theorem_1), ("theorem-2", theorem_2), ("example-1", example_1)):
        draw(Path(folder) / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1])
