"""Every code cell of every notebook in examples/ runs, in order, in a fresh folder. Stored outputs are small."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# Stored outputs of one notebook, in bytes of JSON: enough for tables and a few small figures.
OUTPUTS = 120_000


def name(path: Path) -> str:
    return path.name


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def code(path: Path) -> list[str]:
    return ["".join(c["source"]) for c in cells(path, "code")]


def test_there_are_notebooks() -> None:
    assert [p.name[:2] for p in NOTEBOOKS] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_cells_run_in_order(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for i, text in enumerate(code(path)):
        exec(compile(text, f"{path.name}, code cell {i}", "exec"), names)
    close(names)


def close(names: dict[str, Any]) -> None:
    """Close all figures."""
    if "plt" in names:
        names["plt"].close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_cells_are_plain_python(path: Path) -> None:
    for text in code(path):
        ast.parse(text)  # a magic or a shell line is not Python


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_is_of_format_4_with_little_stored(path: Path) -> None:
    stored = json.loads(path.read_text())
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    ids = [c["id"] for c in stored["cells"]]
    assert len(set(ids)) == len(ids)
    assert len(json.dumps([c["outputs"] for c in cells(path, "code")])) < OUTPUTS
    assert all("".join(c["source"]).strip() for c in stored["cells"])
    assert not re.search(r"/(home|root|work|tmp|Users)/", path.read_text())
