"""The page in a real browser: no complaints, no network, and charts that answer to pointer and keyboard."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import PROGRAM, Browser
from tests.report.conftest import Images, make_images, make_run

from brinell.report import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    images: Images = make_images(60)
    runs = [make_run(folder / name, images, model__name=name) for name in ("a", "b")]
    write(runs, folder / "both.html", problem=images)
    write(runs[0], folder / "report.html", problem=images)
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["report.html", "both.html"])
def test_quiet_and_alone(browser: Browser, page: Path, name: str, width: int, dark: bool) -> None:
    shown = browser.page(width, dark=dark)
    shown.open(page.with_name(name).as_uri())
    assert shown.run("document.querySelectorAll('figure.chart.live').length") > 4
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert shown.problems == []
    assert shown.requests == [page.with_name(name).as_uri()]


WIDE = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"


@pytest.mark.parametrize("width", [1280, 390])
def test_tables_fit_the_page(browser: Browser, page: Path, width: int) -> None:
    """With as many stages, and numbers as long, as AutoAttack on thousands of samples has."""
    run = make_run(page.parent / f"large-{width}", make_images(60))
    names = {"first": "apgd-ce", "second": "apgd-t", "third": "square"}
    text = write(run, page.with_name(f"large-{width}.html")).read_text()
    for short, name in names.items():
        text = text.replace(f">{short}<", f">{name}<")
    page.with_name(f"large-{width}.html").write_text(text)
    shown = browser.page(width)
    shown.open(page.with_name(f"large-{width}.html").as_uri())
    shown.run(
        "[...document.querySelectorAll('[id$=cost] td.n:nth-child(3)')].forEach(e => { e.textContent = '103,376' })"
    )
    assert shown.run("document.querySelectorAll('[id$=cost] td').length") > 20
    assert shown.run(WIDE) == []


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_robust_has_one_colour(browser: Browser, page: Path, dark: bool) -> None:
    shown = browser.page(dark=dark)
    shown.open(page.as_uri())
    fills = "[...new Set([...document.querySelectorAll('[data-series=\"{}\"]')].map(e => getComputedStyle(e).fill))]"
    robust, broken = (shown.run(fills.format(name)) for name in ("robust", "broken by an attack"))
    assert len(robust) == len(broken) == 1 and robust != broken
    # The classes' accuracies, the margins and the bars of the waterfall are all meant.
    assert shown.run("document.querySelectorAll('figure.bars [data-series=robust]').length") > 2
    assert shown.run("document.querySelectorAll('figure.histogram [data-series=robust]').length") > 2
    assert shown.run("getComputedStyle(document.querySelector('figure.waterfall .bar')).fill") == robust[0]
    assert shown.run("getComputedStyle(document.querySelector('figure.waterfall .drop')).fill") == broken[0]


FIRST = "document.querySelector('figure.histogram')"
TICKS = f"[...{FIRST}.querySelectorAll('.ticks-x text')].map(t => t.textContent).join(' ')"


def test_values_by_keyboard(browser: Browser, page: Path) -> None:
    shown = browser.page()
    shown.open(page.as_uri())
    shown.run(f"{FIRST}.querySelector('.stage').focus()")
    shown.press("ArrowRight")
    shown.press("ArrowRight")
    told = shown.run(f"{FIRST}.querySelector('.tip').textContent")
    assert told == shown.run(f"{FIRST}.querySelectorAll('.pt')[1].dataset.tip")
    assert told == shown.run(f"{FIRST}.querySelector('[aria-live]').textContent")
    shown.press("Escape")
    assert shown.run(f"{FIRST}.querySelector('.tip').hidden") is True


def test_zoom_by_keyboard_and_back(browser: Browser, page: Path) -> None:
    shown = browser.page()
    shown.open(page.as_uri())
    before, box = shown.run(TICKS), shown.run(f"{FIRST}.querySelector('.plot-area').getAttribute('viewBox')")
    shown.run(f"{FIRST}.querySelector('.stage').focus()")
    for _ in range(4):
        shown.press("+")
    assert shown.run(TICKS) != before
    assert shown.run(f"{FIRST}.querySelector('.unzoom').hidden") is False
    shown.press("Escape")
    assert shown.run(TICKS) == before
    assert shown.run(f"{FIRST}.querySelector('.plot-area').getAttribute('viewBox')") == box


def test_zoom_by_dragging(browser: Browser, page: Path) -> None:
    shown = browser.page()
    shown.open(page.as_uri())
    shown.run(f"{FIRST}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    box = f"{FIRST}.querySelector('.canvas').getBoundingClientRect()"
    x, y, wide, high = (shown.run(f"{box}.{side}") for side in ("x", "y", "width", "height"))
    row = y + high / 2
    for kind, place, buttons in (("mousePressed", 0.4, 1), ("mouseMoved", 0.5, 1), ("mouseReleased", 0.6, 0)):
        at = {"x": x + place * wide, "y": row, "buttons": buttons}
        shown.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    # The plotting area now shows what was between 40 and 60 % of the canvas, in its own pixels.
    start, _, width, _ = map(float, shown.run(f"{FIRST}.querySelector('.plot-area').getAttribute('viewBox')").split())
    assert start == pytest.approx(0.4 * 480 - 58, abs=2)
    assert width == pytest.approx(0.2 * 480, abs=2)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            shown.call("Input.dispatchMouseEvent", type=kind, x=x + wide / 2, y=row, button="left", clickCount=count)
    assert shown.run(f"{FIRST}.querySelector('.plot-area').getAttribute('viewBox')").startswith("0 0 ")


def test_value_under_the_pointer(browser: Browser, page: Path) -> None:
    shown = browser.page()
    shown.open(page.as_uri())
    shown.run("document.querySelector('figure.waterfall').scrollIntoView({behavior: 'instant', block: 'center'})")
    x, y = shown.run(
        "(() => { const b = document.querySelector('figure.waterfall .pt').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2] })()"
    )
    shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert shown.run("document.querySelector('figure.waterfall .tip').textContent").startswith("clean: 90.0 [")


def test_light_and_dark_by_choice(browser: Browser, page: Path) -> None:
    shown = browser.page()
    shown.open(page.as_uri())
    paper = "getComputedStyle(document.body).backgroundColor"
    light = shown.run(paper)
    shown.run("document.querySelector('[data-theme-switch]').click()")
    assert shown.run(paper) != light
    shown.run("document.querySelector('[data-theme-switch]').click()")
    assert shown.run(paper) == light


def test_it_prints(browser: Browser, page: Path) -> None:
    shown = browser.page(dark=True)
    shown.open(page.as_uri())
    assert len(shown.pdf()) > 15_000
