"""The cache folder of Brinell: $BRINELL_HOME, else a folder in the user's cache."""

import os
from pathlib import Path


def home() -> Path:
    """Return the path of the cache folder, which may not exist yet.

    >>> os.environ["BRINELL_HOME"] = "/data/brinell"
    >>> home().as_posix()
    '/data/brinell'
    >>> del os.environ["BRINELL_HOME"]
    """
    if folder := os.environ.get("BRINELL_HOME"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brinell"
