"""Self-contained HTML pages: style, script and images are inside, and nothing is fetched."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from brinell.errors import MissingExtra
from brinell.report.charts.chart import chart, table
from brinell.report.charts.scales import number

PACKAGE, FOLDER = "brinell.report", "files"
# A ball on a dented surface: the Brinell hardness test.
LOGO = (
    '<svg viewBox="0 0 26 26" aria-hidden="true"><circle cx="13" cy="10" r="8" fill="var(--accent)"/>'
    '<path d="M1 17h4.5a9.5 9.5 0 0 0 15 0H25" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<path d="M1 23h24" stroke="var(--line)" stroke-width="2"/></svg>'
)


def page(
    title: str,
    body: str,
    *,
    contents: Sequence[tuple[str, str]] = (),
    tagline: str = "robustness, measured",
    footer: str = "",
    style: str = "",
    script: str = "",
) -> str:
    """Return an HTML page around `body`, which is markup; `contents` are the ids and names of its sections.

    `style` and `script` are added to the style and script of every page.

    >>> text = page("A < B", "<h1>Hello</h1>")
    >>> "<title>A &lt; B</title>" in text, "<h1>Hello</h1>" in text
    (True, True)
    """
    return render(
        "page.html", title=title, body=markup(body), contents=list(contents), tagline=tagline, footer=markup(footer),
        style=markup(asset("theme.css") + style), script=markup(asset("charts.js") + script),
        logo=markup(LOGO), version=own_version(),
    )  # fmt: skip


def render(template: str, *, package: str = PACKAGE, **values: object) -> str:
    """Fill in a template from the folder `files` of a package; escape every value that `markup` has not marked."""
    return str(_environment(package).get_template(template).render(**values))


def markup(text: str) -> Any:
    """Mark text as HTML markup, so that templates do not escape it."""
    try:
        from markupsafe import Markup
    except ImportError:
        raise _missing() from None
    return Markup(text)


@cache
def asset(name: str, package: str = PACKAGE) -> str:
    """Return the text of a file from the folder `files` of a package."""
    return (files(package) / FOLDER / name).read_text(encoding="utf-8")


def own_version() -> str:
    """Return the version of Brinell, which made the page."""
    try:
        return version("brinell")
    except PackageNotFoundError:
        return "of unknown version"


def _marked(function: Callable[..., str]) -> Callable[..., Any]:
    return lambda *args, **options: markup(function(*args, **options))


def _missing() -> MissingExtra:
    return MissingExtra(
        expected="jinja2 for an HTML page",
        got="an installation without it",
        remedy="Install it: pip install 'brinell[report]' (in a clone '.[report]').",
    )


@cache
def _environment(package: str) -> Any:
    try:
        import jinja2
    except ImportError:
        raise _missing() from None
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(partial(asset, package=package)),
        autoescape=True,  # for every template
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = number
    shared: Mapping[str, Any] = {"chart": _marked(chart), "table": _marked(table)}
    made.globals.update(shared)
    return made
