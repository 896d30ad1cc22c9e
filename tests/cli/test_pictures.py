"""A picture that cannot be drawn is refused before anything is measured."""

from pathlib import Path

import pytest

from brinell.cli._shared import pictures
from brinell.cli._shared.pictures import drawable
from brinell.errors import InputError, MissingExtra


def test_endings() -> None:
    with pytest.raises(InputError, match=r"\.svg"):
        drawable(Path("curve.jpeg"))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        drawable(Path("curve.svg"))


def test_with_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: name)
    drawable(Path("curve.png"))
    drawable(None)
