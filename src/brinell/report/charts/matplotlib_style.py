"""What all pictures with matplotlib share: colours, endings, and how they are written."""

from pathlib import Path
from typing import Any

from brinell.errors import InputError, MissingExtra

SUFFIXES = (".svg", ".png", ".pdf")
# Colours that people with any colour vision can tell apart (Okabe & Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def load_pyplot(*, shown: bool = False) -> Any:
    """Matplotlib's pyplot; unless pictures are to be shown, without a window."""
    try:
        import matplotlib

        if not shown:
            matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra(
            expected="matplotlib for a picture",
            got="no such package",
            remedy="Install it: pip install 'brinell[report]'.",
        ) from None
    return plt


def check_plot_path(path: Path, instead: str) -> None:
    """An InputError for a file that is no picture; `instead` says what to do."""
    if path.suffix not in SUFFIXES:
        raise InputError(expected=f"a file named {', '.join(SUFFIXES)}", got=path.name, remedy=instead)


def reproducible_style(plt: Any, font_size: int = 10) -> Any:
    """A context for pictures with text as text and no random names: equal numbers give equal files."""
    return plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "brinell", "font.size": font_size})


def save(plt: Any, figure: Any, path: Path) -> Path:
    """Write the figure, without a date, and forget it."""
    figure.tight_layout()
    figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path
