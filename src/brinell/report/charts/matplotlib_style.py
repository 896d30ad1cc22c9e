"""What all matplotlib figures share: colours, file formats, and reproducible output."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brinell.errors import InputError, MissingExtra, check_output_paths
from brinell.storage import output_path

SUFFIXES = (".svg", ".png", ".pdf")
# Colours that readers with any colour vision can tell apart (Okabe & Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def load_pyplot(*, shown: bool = False) -> Any:
    """Import matplotlib's pyplot, with a backend that opens no window unless figures are `shown`."""
    try:
        import matplotlib

        if not shown:
            matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise _missing() from None
    return plt


def check_plot_path(path: Path | None, remedy: str = "Give the file one of these endings.") -> None:
    """Raise an error if `path` has no folder or a wrong ending, or matplotlib is missing, before long computations.

    >>> check_plot_path(None)
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise InputError(
            expected=f"a file for the figure that ends in {', '.join(SUFFIXES)}", got=str(path), remedy=remedy
        )
    check_output_paths(path)
    if find_spec("matplotlib") is None:
        raise _missing()


def reproducible_style(plt: Any, font_size: int = 10) -> Any:
    """Return a context in which equal numbers give equal files: SVG text stays text, and SVG ids are not random."""
    return plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "brinell", "font.size": font_size})


def save(plt: Any, figure: Any, path: Path) -> Path:
    """Write the figure to `path` without a date, close it, and return `path`."""
    figure.tight_layout()
    kind, metadata = path.suffix.lstrip("."), {"Date": None} if path.suffix == ".svg" else None
    try:
        with output_path(path) as place:
            figure.savefig(place, dpi=160, format=kind, metadata=metadata)
    finally:
        plt.close(figure)
    return path


def _missing() -> MissingExtra:
    return MissingExtra(
        expected="matplotlib for a figure",
        got="an installation without it",
        remedy="Install it: pip install 'brinell[report]' (in a clone '.[report]').",
    )
