"""Every Python block of the documentation runs and prints what the page shows; links, names and files exist."""

import contextlib
import doctest
import importlib
import inspect
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer

import brinell
from brinell.cli.main import app
from brinell.results import ROWS

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [p for p in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in p.parts]  # the rest is generated
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *WRITTEN]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LONGEST_README = 150
CHECKER, LOOSE = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Return language, text and line of every block."""
    text = page.read_text()
    return [(m[1], m[2], text[: m.start()].count("\n") + 2) for m in BLOCK.finditer(text)]


def run(page: Path) -> None:
    fenced, names = blocks(page), {"__name__": "__docs__"}
    for i, (language, code, line) in enumerate(fenced):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Blank lines in front make a traceback name the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
        if i + 1 < len(fenced) and fenced[i + 1][0] == "text":
            wanted = fenced[i + 1][1]
            assert CHECKER.check_output(wanted, printed.getvalue(), LOOSE), (
                f"{name(page)}:{line} prints\n{printed.getvalue()}"
            )


@pytest.mark.parametrize("page", [p for p in PAGES if any(b[0] == "python" for b in blocks(p))], ids=name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_exist(page: Path) -> None:
    links = [t for t in LINK.findall(BLOCK.sub("", page.read_text())) if "://" not in t and not t.startswith("#")]
    missing = [t for t in links if not (page.parent / t.partition("#")[0]).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_paths_of_one_machine(page: Path) -> None:
    assert not re.search(r"/(home|root|work|tmp|Users)/", page.read_text())


def exists(dotted: str) -> bool:
    """Return whether a dotted name is a module or an attribute of one."""
    thing: Any = brinell
    for i, part in enumerate(dotted.split(".")[1:], 2):
        if hasattr(thing, part):
            thing = getattr(thing, part)
            continue
        try:
            thing = importlib.import_module(".".join(dotted.split(".")[:i]))
        except ImportError:
            return False
    return True


@pytest.mark.parametrize("page", PAGES[:1] + PAGES[2:], ids=name)  # the changelog keeps old names
def test_names_in_the_text_exist(page: Path) -> None:
    names = set(re.findall(r"`(brinell(?:\.\w+)+)(?![\w*])", BLOCK.sub("", page.read_text())))
    assert [n for n in sorted(names) if not n.endswith(".yaml") and not exists(n)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "design").glob("*.md")), ids=name)
def test_files_named_on_design_pages_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    files = re.findall(r"`((?:[\w.]+/)+\w+\.(?:py|md))`", text)
    assert [f for f in files if not any((folder / f).exists() for folder in (ROOT, ROOT / "src" / "brinell"))] == []


def test_the_page_of_plans_lists_every_plan() -> None:
    text = (ROOT / "docs" / "plans.md").read_text()
    listed = re.findall(r"^\| `([\w+-]+)` \| (weak|audited|standard) \|", text, re.MULTILINE)
    from brinell.attacks.catalogue import PLANS

    assert dict(listed) == {p.name: p.strength for p in PLANS.values()}


def test_the_page_of_development_lists_every_make_target() -> None:
    targets = re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = (ROOT / "docs" / "development.md").read_text()
    assert [t for t in targets if t not in ("help", "clean") and f"`make {t}`" not in text] == []


def test_readme_is_short_and_its_counts_are_true() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= LONGEST_README
    from brinell.attacks.catalogue import PLANS
    from brinell.defences import DEFENCES

    assert f"one of {len(PLANS)} plans" in text
    published = [name for name in brinell.models.cards() if not name.endswith("/Demo")]
    assert f"one of {len(published)} published robust models" in text
    assert text.count(f"{len(DEFENCES)} ") >= 2  # broken defences, in both tables


def test_readme_names_verbs_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    program: Any = typer.main.get_command(app)
    named = set(re.findall(r"brinell ([a-z-]+)", "".join(re.findall(r"`[^`]+`|^brinell .*", text, re.MULTILINE))))
    assert named and named - set(program.commands) == set()


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = [term.lower() for term in re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)]
    assert terms == sorted(terms) and len(set(terms)) == len(terms)


def test_every_page_is_in_the_contents() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    pages = [p.relative_to(ROOT / "docs").with_suffix("") for p in WRITTEN if p.name != "index.md"]
    listed = [p for p in pages if str(p) in text.split() or f"{p.parent}/*" in text.split()]
    assert set(pages) - set(listed) == set()


def test_python_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    assert [n for n in brinell.__all__ if f"`brinell.{n}`" not in text] == []


def test_python_page_has_every_keyword_of_evaluate() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    known = inspect.signature(brinell.evaluate).parameters.values()
    given = {p.name for p in known if p.kind is not p.VAR_KEYWORD} - {"classifier", "problem", "threat"}
    assert [keyword for keyword in sorted(given) if f"| `{keyword}` |" not in text] == []


def test_run_format_page_has_every_column() -> None:
    text = (ROOT / "docs" / "run-format.md").read_text()
    assert [field.name for field in ROWS if f"`{field.name}`" not in text] == []


def test_cli_page_has_every_verb_and_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    program: Any = typer.main.get_command(app)
    for verb, command in program.commands.items():
        assert f"## brinell {verb}" in text
        inner = getattr(command, "commands", {})
        assert [v for v in inner if f"| `{v}` |" not in text] == []
        options = [
            o for c in (command, *inner.values()) for p in c.params if not getattr(p, "hidden", False) for o in p.opts
        ]
        assert [o for o in options if o.startswith("--") and o != "--help" and f"`{o}`" not in text] == []
