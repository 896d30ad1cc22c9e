"""Text and charts stand out from what is behind them, in light, dark and print (WCAG 2: 4.5 for text, 3 for shapes)."""

import re

import pytest

from brinell.report.page import asset

Colours = dict[str, tuple[float, ...]]


def themes() -> dict[str, Colours]:
    css = asset("theme.css")
    blocks = {
        "light": css[css.index(":root {") :],
        "dark by the system": css[css.index(':root:not([data-theme="light"])') :],
        "dark by choice": css[css.index(':root[data-theme="dark"] {') :],
        "print": css[css.index("@media print") :],
    }
    return {name: _colours(text[: text.index("}")]) for name, text in blocks.items()}


def _colours(text: str) -> Colours:
    found = {}
    for name, digits in re.findall(r"--([\w-]+): #([0-9a-f]{3,6});", text):
        whole = digits if len(digits) == 6 else "".join(2 * d for d in digits)
        found[name] = tuple(int(whole[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return found


def luminance(colour: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def over(top: tuple[float, ...], below: tuple[float, ...], opacity: float) -> tuple[float, ...]:
    return tuple(opacity * t + (1 - opacity) * b for t, b in zip(top, below, strict=True))


def test_contrast_is_the_published_one() -> None:
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)


@pytest.mark.parametrize("name", list(themes()))
def test_text_can_be_read(name: str) -> None:
    c = themes()[name]
    pairs = [(t, b) for t in ("ink", "soft", "accent") for b in ("card", "paper")]
    pairs += [(t, f"{t}-soft") for t in ("good", "warn", "bad", "accent")]
    assert {p: contrast(c[p[0]], c[p[1]]) for p in pairs if contrast(c[p[0]], c[p[1]]) < 4.5} == {}


@pytest.mark.parametrize("name", list(themes()))
def test_shapes_can_be_seen(name: str) -> None:
    c = themes()[name]
    assert {i: contrast(c[f"c{i}"], c["card"]) for i in range(8) if contrast(c[f"c{i}"], c["card"]) < 3} == {}


@pytest.mark.parametrize("name", list(themes()))
def test_numbers_in_the_darkest_cell_can_be_read(name: str) -> None:
    from brinell.report.charts.bars import DARKEST

    c = themes()[name]
    assert contrast(c["ink"], over(c["c0"], c["card"], 0.04 + DARKEST)) >= 4.5


def test_both_dark_themes_are_one() -> None:
    assert themes()["dark by the system"] == themes()["dark by choice"]
