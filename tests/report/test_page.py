"""A page is one file that fetches nothing."""

import re

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
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    module._environment.cache_clear()
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        render("page.html")
    module._environment.cache_clear()
