"""The pages on the papers are true: they show the stored results, and the list of items points at code that exists."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_show_the_stored_results() -> None:
    spec = spec_from_file_location("papers", ROOT / "benchmarks" / "papers.py")
    assert spec is not None and spec.loader is not None
    papers = module_from_spec(spec)
    spec.loader.exec_module(papers)
    made = papers.pages()
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is old: run python benchmarks/papers.py"
    stored = papers.stored()
    assert len(stored) >= 25
    for results in stored.values():
        for folder, result in results:
            assert result.picture is None or (folder / result.picture).is_file()
            assert (folder / "result.md").read_text() == result.to_markdown(), folder
            used = {"model" if o == "models" else o for o in result.exhibit.uses}
            assert set(re.findall(r" --(\w+)", result.command)) <= used, folder
            assert not re.search(r"/(work|tmp|home|root)/", (folder / "result.json").read_text()), folder


def test_every_item_of_the_papers_has_a_status_and_a_place() -> None:
    items, partial = 0, []
    for line in (ROOT / "docs" / "papers.md").read_text().splitlines():
        if not line.startswith("| ") or line.startswith("| item"):
            continue
        item, _, code, status = (cell.strip() for cell in line.strip("|").split(" | "))
        count = re.search(r"\((\d)\)$", item)
        items += int(count.group(1)) if count else 1
        assert status.startswith(("right", "partial: ")), line
        partial += [line] if status.startswith("partial") else []
        for path in re.findall(r"`([\w/]+/[\w./]*|\w+\.py)`", code):
            assert list((ROOT / "src" / "brinell").glob(f"**/{path.rstrip('/')}")), f"{path} of {item}"
    assert items == 147
    assert len(partial) <= 8
