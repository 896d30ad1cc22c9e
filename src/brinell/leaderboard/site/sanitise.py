"""Make text from records safe for a page: only text and links remain."""

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

from brinell.report.charts.svg import element, escape

# The content of these elements is dropped.
SILENT = ("script", "style", "template", "noscript", "iframe", "object", "svg", "math")
BREAKS = ("br", "p", "div", "li", "tr")
SCHEMES = ("http", "https")


def safe_link(text: str) -> str | None:
    """Return the text if it is an http or https address; None for everything else, such as scripts.

    >>> safe_link("https://arxiv.org/abs/2003.01690"), safe_link("javascript:alert(1)"), safe_link("//example.org")
    ('https://arxiv.org/abs/2003.01690', None, None)
    """
    # Browsers ignore blanks and control characters inside a scheme.
    address = re.sub(r"[\x00-\x20\x7f]", "", text)
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return address if parts.scheme.lower() in SCHEMES and parts.netloc else None


def anchor(inside: str, address: str) -> str:
    """Return the markup `inside` as a link to `address`, or without a link if the address is not safe."""
    known = safe_link(address)
    return inside if known is None else element("a", inside, href=known, rel="noopener noreferrer")


def footnote(text: str | None) -> str:
    """Return a footnote as markup: escaped text, and web links as the only elements.

    >>> footnote('Uses <a href="https://example.org" onclick="x()">more <b>data</b></a>.<script>x()</script>')
    'Uses <a href="https://example.org" rel="noopener noreferrer">more data</a>.'
    """
    joined: list[tuple[str, str | None]] = []
    for piece, link in _pieces(text):
        if joined and joined[-1][1] == link:
            joined[-1] = joined[-1][0] + piece, link
        else:
            joined.append((piece, link))
    return "".join(anchor(escape(piece), link) if link else escape(piece) for piece, link in joined).strip()


def plain(text: str | None) -> str:
    """Return the text without markup, on one line.

    >>> plain("GitHub,<br>Sep 2019")
    'GitHub, Sep 2019'
    """
    return " ".join("".join(piece for piece, _ in _pieces(text)).split())


def _pieces(text: str | None) -> list[tuple[str, str | None]]:
    reader = _Reader()
    reader.feed(text or "")
    reader.close()
    return reader.pieces


class _Reader(HTMLParser):
    """An HTML parser that collects pieces of text, each with the address it links to, or None."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[tuple[str, str | None]] = []
        self._silent: list[str] = []
        self._links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SILENT:
            self._silent.append(tag)
        elif tag == "a":
            self._links.append(safe_link(dict(attrs).get("href") or ""))
        elif tag in BREAKS:
            self.handle_data(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BREAKS:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
        elif tag == "a" and self._links:
            self._links.pop()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append((data, self._links[-1] if self._links else None))
