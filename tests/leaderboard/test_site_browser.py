"""The leaderboard in a real browser: search, sort, filters and addresses do what they say, with a mouse and without."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.browser import PROGRAM, Browser
from tests.leaderboard.test_site import copy_of_run

from brinell.leaderboard.records import RECORD, Record, of_run, published
from brinell.leaderboard.site import build
from brinell.results import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs chromium"),
]
HOSTILE = "</td></table><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
HOSTILE += "&lt;img src=x onerror='window.broken = 1'&gt;"
LINF = [r for r in published() if (r.dataset, r.threat) == ("cifar10", "Linf")]
TITLES = "[...document.querySelectorAll('table.board tbody tr:not([hidden]) .model')].map((e) => e.textContent)"
# The name of a model is below its title, or in place of it.
NAMES = (
    "[...document.querySelectorAll('table.board tbody tr:not([hidden])')]"
    ".map((r) => (r.querySelector('.id') ?? r.querySelector('.model')).textContent)"
)
COUNT = "document.querySelector('output.count').textContent"
SORTED = "[...document.querySelectorAll('thead th')].filter((h) => h.ariaSort && h.ariaSort !== 'none')"
SORTED += ".map((h) => [h.dataset.key, h.ariaSort])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published records, a Run with everything a stranger may write, and enough others for 300 rows on one board."""
    folder = tmp_path_factory.mktemp("site")
    run = copy_of_run(folder / "run", plan__name=HOSTILE, threat__norm="L2", threat__eps=0.5)
    evil = of_run(
        Run.open(run),
        "cifar10",
        "L2",
        "Evil",
        dict.fromkeys(("footnote", "title", "authors", "venue", "architecture"), HOSTILE),
    )
    replace(evil, eps="0.5", reasons=(HOSTILE,), restrictions=(HOSTILE,)).write(run / RECORD)
    for i in range(300 - 38):
        Record("cifar100", "Linf", f"Other{i}", eps="8/255", clean=60 + i / 10, autoattack=20 + i / 20).write(
            folder / "r"
        )
    build([run], records=folder / "r", out=folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with Browser() as made:
        yield made


def opened(browser: Any, path: Path, width: int = 1280, height: int = 900, **options: Any) -> Any:
    page = browser.page(width, height, **options)
    page.open(path.as_uri())
    return page


def choose(page: Any, name: str, value: str) -> None:
    page.run(
        f"(() => {{ const s = document.querySelector('select[name={name}]'); s.value = {json.dumps(value)};"
        "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_search_filters_and_counts(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-Linf.html")
    assert page.run(COUNT) == "99 of 99" and len(page.run(NAMES)) == 99
    page.click("input[type=search]")
    page.type("wideresnet-28-10 2020")
    wanted = [r.name for r in LINF if r.architecture.startswith("WideResNet-28-10") and r.year == 2020]
    assert set(wanted) <= set(page.run(NAMES)) and page.run(COUNT) == f"{len(page.run(NAMES))} of 99"
    assert 1 < len(page.run(NAMES)) < 99
    page.click("button[type=reset]")
    choose(page, "extra", "yes")
    extra = {r.name for r in LINF if r.extra_data}
    assert set(page.run(NAMES)) == extra and page.run(COUNT) == f"{len(extra)} of 99"
    choose(page, "status", "external")
    both = {r.name for r in LINF if r.extra_data and r.external is not None}
    assert set(page.run(NAMES)) == both
    # What a choice would leave is beside it, the other filters being as they are.
    told = page.run("[...document.querySelector('select[name=extra]').options].map((o) => o.textContent)")
    assert f"yes ({len(both)})" in told
    faint = page.run("document.querySelectorAll('.chart.points .pt.faint').length")
    assert faint == 99 - len(both)
    page.run("document.querySelector('input[type=search]').value = 'no such model'; 0")
    page.run("document.querySelector('input[type=search]').dispatchEvent(new Event('input', {bubbles: true})); 0")
    assert page.run(COUNT) == "0 of 99" and page.run("!document.querySelector('.nothing').hidden")
    page.click("[data-clear]")
    assert page.run(COUNT) == "99 of 99" and page.run("document.querySelectorAll('.pt.faint').length") == 0
    assert page.problems == []


def test_sorting_by_mouse_and_keyboard(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-Linf.html")
    best = page.run(NAMES)
    assert page.run(SORTED) == [["rank", "ascending"]]
    page.click("th[data-key=clean] button")
    clean = {r.name: r.clean for r in LINF}
    values = [clean[n] for n in page.run(NAMES)]
    assert values == sorted(values, reverse=True) and page.run(SORTED) == [["clean", "descending"]]
    page.run("document.querySelector('th[data-key=over] button').focus()")
    page.press("Enter")
    over = {r.name: r.overestimation for r in LINF}
    values = [over[n] for n in page.run(NAMES)]
    assert values == sorted(values, reverse=True) and page.run(SORTED) == [["over", "descending"]]
    page.press(" ")
    assert [over[n] for n in page.run(NAMES)] == sorted(values) and page.run(SORTED) == [["over", "ascending"]]
    # What is not known comes last, whichever way.
    page.run("document.querySelector('th[data-key=year] button').focus()")
    for _ in range(2):
        page.press("Enter")
        assert page.run(NAMES)[-1] == "Standard"
    page.click("th[data-key=rank] button")
    assert page.run(NAMES) == best
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Method"
    assert page.problems == []


def test_the_address_remembers(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-Linf.html")
    page.click("input[type=search]")
    page.type("ResNet-152 + wide")  # with blanks and a plus, as addresses do not like them
    choose(page, "extra", "yes")
    page.click("th[data-key=clean] button")
    shown, hash_ = page.run(NAMES), page.run("location.hash")
    clean = {r.name: r.clean for r in LINF if r.architecture.startswith("ResNet-152 + Wide")}
    assert len(clean) > 1 and shown == sorted(clean, key=lambda name: -(clean[name] or 0)) and "sort=-clean" in hash_
    page.reload()
    assert (
        page.run(NAMES) == shown
        and page.run(COUNT) == f"{len(clean)} of 99"
        and page.run(SORTED) == [["clean", "descending"]]
    )
    again = browser.page()
    again.open((site / "cifar10-Linf.html").as_uri() + hash_)
    assert again.run(NAMES) == shown
    again.open((site / "cifar10-Linf.html").as_uri() + "#q=carmon")
    again.until(NAMES, ["Carmon2019Unlabeled"])
    again.open((site / "cifar10-Linf.html").as_uri() + "#sort=nonsense&extra=perhaps&%E0%A4%A=1")
    again.until(COUNT, "99 of 99")
    choose(again, "extra", "yes")
    # A model can be linked to, and a place on the page does not change what is shown.
    again.open((site / "cifar10-Linf.html").as_uri() + "#Carmon2019Unlabeled")
    again.until(
        "(() => { const b = document.getElementById('Carmon2019Unlabeled').getBoundingClientRect();"
        "return 0 < b.top && b.bottom < innerHeight; })()",
        True,
    )
    assert again.run(COUNT) == "99 of 99"
    choose(again, "extra", "yes")
    again.open((site / "cifar10-Linf.html").as_uri() + "#charts")
    again.until("location.hash", "#charts")
    assert again.run(COUNT) != "99 of 99"
    assert page.problems == [] and again.problems == []


def test_the_network_is_left_alone(browser: Any, site: Path) -> None:
    for path in [site / "index.html", site / "cifar10-Linf.html", *(site / "runs").iterdir()]:
        page = opened(browser, path)
        page.run("document.querySelector('[data-theme-switch]').click()")
        assert page.requests == [path.as_uri()] and page.problems == []


@pytest.mark.parametrize("width", [390, 768])
def test_no_page_is_wider_than_the_window(browser: Any, site: Path, width: int) -> None:
    for path in [*site.glob("*.html"), *(site / "runs").iterdir()]:
        page = opened(browser, path, width, 844)
        page.run("for (const d of document.querySelectorAll('details')) d.open = true")
        assert page.run("document.documentElement.scrollWidth") <= width, path.name
        if path.name == "cifar10-Linf.html":  # the table scrolls in its pane, the names stay
            left = page.run("(() => { const p = document.querySelector('.pane'); p.scrollLeft = 400; const n ="
                            "document.querySelector('tbody .k-method').getBoundingClientRect().x; return [p.scrollLeft,"
                            "n - p.getBoundingClientRect().x]; })()")  # fmt: skip
            assert left[0] > 300 and 0 <= left[1] <= 2
            # Three columns of numbers beside the names, without scrolling.
            page.run("document.querySelector('.pane').scrollLeft = 0")
            edge = page.run("document.querySelector('tbody .k-best').getBoundingClientRect().right")
            assert edge <= width


def test_without_scripts_the_table_is_whole(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-Linf.html", script=False)
    page.call("Emulation.setScriptExecutionDisabled", value=False)  # for the questions; the page's own did not run
    assert page.run("document.querySelectorAll('table.board tbody tr').length") == 99
    assert page.run("document.querySelector('form.tools').checkVisibility()") is False
    assert page.run("document.querySelectorAll('thead button').length") == 0
    assert page.run("[...document.querySelectorAll('table.board tbody tr')].every((r) => r.checkVisibility())")


def test_hostile_strings_do_nothing(browser: Any, site: Path) -> None:
    for path in [site / "cifar10-L2.html", *(site / "runs").iterdir(), site / "index.html"]:
        page = opened(browser, path)
        page.run("for (const d of document.querySelectorAll('details')) d.open = true")
        assert (
            page.run("window.broken === undefined && document.querySelectorAll('img, script:not(:last-child)').length")
            == 0
        )
        assert page.problems == []
    page = opened(browser, site / "cifar10-L2.html")
    assert HOSTILE in page.run(TITLES) and page.run(COUNT) == "22 of 22"


def test_three_hundred_rows(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar100-Linf.html")
    assert page.run(COUNT) == "300 of 300"
    page.click("th[data-key=autoattack] button")
    page.click("input[type=search]")
    page.type("other26")
    assert page.run(COUNT) == "3 of 300" and page.run(NAMES) == ["Other261", "Other260", "Other26"]


def test_a_point_tells_its_name(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-L2.html", 1280, 1600)
    x, y, label = page.run(
        "(() => { const p = [...document.querySelectorAll('.chart.points .pt')].find((e) => e.dataset.label =="
        "'Standard'); p.scrollIntoView({block: 'center'}); const b = p.getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2, p.dataset.label]; })()"
    )
    page.hover(x, y)
    tip = page.run("document.querySelector('.chart.points .tip').textContent")
    assert tip == f"{label}, own data only, 94.78: 0"


def test_printed_it_is_whole_and_has_no_controls(browser: Any, site: Path) -> None:
    page = opened(browser, site / "cifar10-Linf.html")
    assert page.pdf().startswith(b"%PDF")
    page.media(paper=True)
    assert (
        page.run("[...document.querySelectorAll('form.tools, nav.boards')].some((e) => e.checkVisibility())") is False
    )
    assert page.run(
        "(() => { const p = document.querySelector('.pane'); return p.scrollHeight <= p.clientHeight + 1; })()"
    )
