"""The documentation site, `make docs`. Its root is the repository: links are the same here and on a code host."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import reference  # noqa: E402

import brinell  # noqa: E402

project, author = "Brinell", "The Brinell authors"
version = release = brinell.__version__

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "CHANGELOG.md", "benchmarks/results/*.md"]
exclude_patterns = [".*", "build", "src", "tests", "examples", "runs", "carry", "**/__pycache__"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "Brinell"
html_static_path: list[str] = []
html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "monokai"
suppress_warnings = ["misc.highlighting_failure"]  # console blocks


def setup(app: object) -> None:
    """Write the pages that are made of docstrings before anything is read."""
    reference.write(ROOT / "docs" / "reference")
