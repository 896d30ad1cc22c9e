"""What a package index would show of the project, and what the documentation site is made of."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
TARGET = re.compile(r"\]\(([^)\s]+)\)")


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hook() -> Any:
    pytest.importorskip("hatchling", reason="needs the extra dev")
    return load("hatch_build.py")


def test_links_and_pictures_of_an_index_page_are_whole_addresses(hook: Any) -> None:
    home = "https://code.example/us/brinell"
    shown = hook.index_readme(README, home, "1.2.3")
    assert len(TARGET.findall(shown)) == len(TARGET.findall(README)) > 50
    assert all(target.startswith((f"{home}/blob/v1.2.3/", f"{home}/raw/v1.2.3/")) for target in TARGET.findall(shown))
    paths = [target.split("/v1.2.3/")[1].partition("#")[0] for target in TARGET.findall(shown)]
    assert all((ROOT / path).exists() for path in paths)
    assert all("/raw/" in target for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", shown))
    assert hook.addresses(home, "1.2.3")["Changelog"] == f"{home}/blob/v1.2.3/CHANGELOG.md"


def test_without_an_address_nothing_is_broken(hook: Any) -> None:
    shown = hook.index_readme(README, "", "1.2.3")
    assert TARGET.findall(shown) == [] and "![" not in shown and hook.addresses("", "1.2.3") == {}
    assert "tutorial, ten minutes" in shown


def test_notebooks_become_pages_with_their_stored_outputs(tmp_path: Path) -> None:
    load("docs/notebooks.py").write(tmp_path)
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        text = (tmp_path / f"{path.stem}.md").read_text()
        outputs = [o for c in json.loads(path.read_text())["cells"] for o in c.get("outputs", ())]
        assert len(outputs) >= 4 and not any(o["output_type"] == "error" for o in outputs)
        assert all("".join(o["text"]).splitlines()[0] in text for o in outputs if o["output_type"] == "stream")
        pictures = re.findall(r"\((\S+\.png)\)", text)
        assert len(pictures) == sum("image/png" in o.get("data", {}) for o in outputs)
        assert all((tmp_path / name).read_bytes()[1:4] == b"PNG" for name in pictures)


def test_the_site_has_a_page_at_its_root(tmp_path: Path) -> None:
    """Read from the configuration, which needs none of the site's own packages."""
    text = (ROOT / "docs" / "conf.py").read_text()
    assert 'url=docs/index.html"' in text and '"index.html", START' in text
