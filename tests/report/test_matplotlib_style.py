"""A figure that cannot be drawn is refused before anything is measured."""

from pathlib import Path

import pytest

from brinell.errors import InputError, MissingExtra
from brinell.report.charts import matplotlib_style
from brinell.report.charts.matplotlib_style import check_plot_path


def test_endings() -> None:
    with pytest.raises(InputError, match=r"\.svg"):
        check_plot_path(Path("curve.jpeg"))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib_style, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        check_plot_path(Path("curve.svg"))


def test_with_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib_style, "find_spec", lambda name: name)
    check_plot_path(Path("curve.png"))
    check_plot_path(None)
