"""The map of the code names every folder of the package, and nothing that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "brinell"
TEXT = (ROOT / "docs" / "design" / "map.md").read_text()
TREE = re.search(r"^```text\n(src/brinell/.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
# A path below the package, in backquotes or in the diagram: with a folder, an ending, or both.
PATH = re.compile(r"(?:(?<=`)|(?<=  )|(?<=, ))([a-z_]+/(?:[a-z_]+/)*(?:\w+\.py)?|[a-z_]+\.py)(?=`|,|\n)")
FEWEST_CHANGES = 10


def tree() -> list[str]:
    """Folders of the tree, from the indentation, relative to the package."""
    assert TREE is not None
    folders: list[str] = []
    parents: list[str] = []
    for line in TREE[1].splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0].rstrip("/")
        parents = [*parents[: depth - 1], name]
        folders.append("/".join(parents))
    return folders


def folders() -> list[str]:
    """Folders of the package that hold a file."""
    return sorted(
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_dir()
        and path.name != "__pycache__"
        and any(p.is_file() for p in path.rglob("*") if "__pycache__" not in p.parts)
    )


def changes() -> list[tuple[str, str]]:
    """The rows of the table of changes."""
    table = TEXT.partition("| to do this | go to |\n|---|---|\n")[2].partition("\n\n")[0]
    return [(cells[1].strip(), cells[2]) for cells in (line.split("|") for line in table.splitlines())]


def test_the_tree_is_the_package() -> None:
    assert sorted(tree()) == folders()
    assert len(set(tree())) == len(tree())


def test_every_folder_of_the_tree_is_described() -> None:
    assert TREE is not None
    assert [line for line in TREE[1].splitlines() if len(line.split()) < 3] == []


def test_every_path_exists() -> None:
    paths = PATH.findall(TEXT.replace(TREE[0] if TREE else "", ""))
    assert len(paths) > 40
    assert [p for p in paths if not (PACKAGE / p).exists()] == []
    tests = re.findall(r"`(tests/\w+)`", TEXT)
    assert tests and [t for t in tests if not (ROOT / t).is_dir()] == []


def test_every_change_leads_to_a_path() -> None:
    assert len(changes()) >= FEWEST_CHANGES
    assert [task for task, place in changes() if not PATH.search(place + "\n")] == []


def test_tables_named_beside_a_file_are_in_it() -> None:
    for file, table in re.findall(r"`([\w/]+\.py)`, the table `(\w+)`", TEXT):
        assert re.search(rf"^{table}\b", (PACKAGE / file).read_text(), re.MULTILINE), (file, table)
