"""HTML of a dossier: tables, lists and facts, with every text escaped and every number marked with its key."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from brinell.dossier.check_dossier import texts, wilson


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


class Section(NamedTuple):
    """One numbered section of a dossier."""

    id: str
    title: str
    body: Html


MISSING = Html('<i class="missing">not stated</i>')


def cell(value: Any) -> Html:
    """Return a value as markup; an empty text becomes "not stated".

    >>> cell("<b>"), cell(""), cell(Html("<b>x</b>"))
    ('&lt;b&gt;', '<i class="missing">not stated</i>', '<b>x</b>')
    """
    if isinstance(value, Html):
        return value
    if value is None or value == "" or value == []:
        return MISSING
    if isinstance(value, list | tuple):
        return Html("<br>".join(cell(v) for v in value))
    return Html(escape(str(value)))


def join(*parts: Any) -> Html:
    """Return the parts as markup, one after the other."""
    return Html("".join(cell(part) for part in parts))


def element(tag: str, *parts: Any, kind: str = "") -> Html:
    """Return an element with the parts inside."""
    name = f' class="{escape(kind)}"' if kind else ""
    return Html(f"<{tag}{name}>{join(*parts)}</{tag}>\n")


def badge(level: str, text: str | None = None) -> Html:
    """Return a short word with a colour for its level."""
    return Html(f'<b class="badge {escape(level.replace(" ", "-"))}">{escape(text or level)}</b>')


def items(values: Iterable[Any]) -> Html:
    """Return a list."""
    return element("ul", *(element("li", value) for value in values))


def facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    """Return names with their values."""
    return element("dl", *(join(element("dt", name), element("dd", value)) for name, value in pairs))


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table whose first column names the row."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{cell(first)}</th>{"".join(map(_td, heads[1:], rest))}</tr>\n' for first, *rest in rows
    )
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _td(head: str, value: Any) -> str:
    # On narrow screens the cells of a row lie one below the other, each with its head.
    return f'<td data-head="{escape(head)}">{cell(value)}</td>'


class DossierView:
    """A payload with the texts of its numbers, as the checker computes them."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload, self.runs, self.shares = payload, payload["runs"], payload["numbers"]["shares"]
        self.declared, self.texts = payload["declared"], texts(payload, payload["numbers"])

    def data(self, key: str) -> Html:
        """Return the text of a number, marked with its key for the checker."""
        return Html(f'<data value="{escape(key)}">{escape(self.texts[key])}</data>')

    def share(self, key: str, of: int = 1) -> Html:
        """Return a share with its interval and a bar; `of` intervals hold together with 95 %."""
        k, n = self.shares[key][:2]
        name = f"{key}/of {of}" if of > 1 else key
        if not n:
            return self.data(name)
        low, high = (100 * end for end in wilson(k, n, 1 - 0.05 / of))
        return Html(
            f'{self.data(name)}<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="track" width="100" height="6"/><rect class="range" x="{low:.1f}" width="{high - low:.1f}" '
            f'height="6"/><rect class="value" x="{99 * k / n:.1f}" width="1" height="6"/></svg>'
        )

    def count(self, key: str) -> Html:
        """Return a share as "k of n"."""
        return self.data(f"{key}/count")

    def has(self, key: str) -> bool:
        """Whether the dossier has this share."""
        return key in self.shares

    def verdict(self, i: int) -> Html:
        """Return the verdict on a Run."""
        kind = escape(self.runs[i]["verdict"].replace(" ", "-"))
        return Html(f'<b class="badge {kind}">{self.data(f"verdict/{i}")}</b>')
