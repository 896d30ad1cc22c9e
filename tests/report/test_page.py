"""A page is one file that fetches nothing."""

import re
import sys

import pytest

from brinell.errors import MissingExtra
from brinell.report import page as module
from brinell.report.page import asset, page, render

# What a browser would fetch by itself; the names of SVG and links that a person may follow are none of it.
FETCHED = re.compile(
    r"""(?:\b(?:src|srcset|poster|data)\s*=|\burl\(|@import|<link[^>]+href\s*=)\s*["']?\s*(?!data:)([^\s"'>)]+)"""
)


def test_nothing_is_fetched() -> None:
    text = page("Title", "<h1>Body</h1>")
    assert FETCHED.findall(text) == []
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|sendBeacon|importScripts|eval)\s*\(", asset("charts.js"))


def test_the_pattern_would_find_it() -> None:
    assert FETCHED.findall('<img src="https://a/b.png">') == ["https://a/b.png"]
    assert FETCHED.findall("@import 'x.css'; a { b: url(c.png) }") == ["x.css", "c.png"]


def test_values_are_escaped() -> None:
    text = page("</title><script>1</script>", "<h1>x</h1>", contents=[('"><script>', "<script>")], tagline="<script>")
    assert text.count("<script") == 1


def test_the_policy_forbids_the_network() -> None:
    assert "default-src 'none'" in page("T", "")


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, "jinja2", None)
    module._environment.cache_clear()
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        render("page.html")
    module._environment.cache_clear()


def test_reports_do_without_torch() -> None:
    """A machine that only reads Runs needs no torch for their reports either."""
    import subprocess
    from pathlib import Path

    import brinell

    code = (
        "import sys, types\n"
        "class Ban:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('torch is banned here')\n"
        "sys.meta_path.insert(0, Ban())\n"
        "package = types.ModuleType('brinell')\n"
        f"package.__path__ = [{str(Path(brinell.__file__).parent)!r}]\n"
        "sys.modules['brinell'] = package\n"
        "import brinell.report as r\n"
        "from brinell.results import Run\n"
        f"run = Run.open({str(Path(__file__).parents[1] / 'results' / 'golden_run_v1')!r})\n"
        "print('33.3' in r.text([run]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_without_the_extra_a_report_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup is the first thing that is asked for, and comes with jinja2."""
    for name in ("jinja2", "markupsafe"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        module.markup("<p>")
