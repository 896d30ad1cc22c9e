"""What a package index shows: addresses of the project, and the README with links and pictures that work there.

The address of the repository is `home` in pyproject.toml. Without one there are no addresses: links of the README
become their text and pictures are left out, so that no page of an index has broken ones.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)([^)\s]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


class IndexPage(MetadataHookInterface):
    """Fill in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml declares as dynamic."""
        home, version = self.config["home"].rstrip("/"), metadata["version"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_readme(text, home, version)}
        metadata["urls"] = addresses(home, version)


def addresses(home: str, version: str) -> dict[str, str]:
    """Return the addresses by name; none without a home."""
    pages = {
        "Homepage": "", "Documentation": f"/blob/v{version}/docs/index.md", "Issues": "/issues",
        "Changelog": f"/blob/v{version}/CHANGELOG.md",
    }  # fmt: skip
    return {name: home + page for name, page in pages.items()} if home else {}


def index_readme(text: str, home: str, version: str) -> str:
    """Return the README for a package index: addresses of this version instead of paths in the repository."""
    if not home:
        return LINK.sub(r"\1", PICTURE.sub("", text))
    text = PICTURE.sub(rf"![\1]({home}/raw/v{version}/\2)\n\n", text)
    return LINK.sub(rf"[\1]({home}/blob/v{version}/\2)", text)
