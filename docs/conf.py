"""The documentation site, `make docs`. Its root is the repository: links are the same here and on a code host."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import notebooks  # noqa: E402
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


# Pages lie in docs/, as in the repository, so a host that serves the site needs this one at its root.
START = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Brinell</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"><link rel="canonical" href="docs/index.html"></head>
<body><p><a href="docs/index.html">The documentation of Brinell</a></p></body></html>
"""


def setup(app: Any) -> None:
    """Write the pages made of docstrings and notebooks before anything is read, and the start page at the end."""
    reference.write(ROOT / "docs" / "reference")
    notebooks.write(ROOT / "docs" / "notebooks")
    app.connect("build-finished", _write_start)


def _write_start(app: Any, error: Exception | None) -> None:
    for name, text in (("index.html", START), (".nojekyll", "")):
        (Path(app.outdir) / name).write_text(text)
