"""Pictures that are asked for on the command line."""

from importlib.util import find_spec
from pathlib import Path

from brinell.errors import InputError, MissingExtra
from brinell.report.charts.matplotlib_style import SUFFIXES


def drawable(path: Path | None) -> None:
    """Refuse a picture that could not be drawn before hours are spent on what it would show.

    >>> drawable(None)
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise InputError(
            expected=f"a picture as {', '.join(SUFFIXES)}", got=str(path), remedy="Give the file one of these endings."
        )
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            expected="matplotlib for a picture",
            got="an installation without it",
            remedy="Install it: pip install 'brinell[report]'.",
        )
