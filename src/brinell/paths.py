"""Where Brinell keeps what it has fetched or measured: $BRINELL_HOME, else a folder in the user's cache."""

import os
from pathlib import Path


def home() -> Path:
    """The folder; it need not exist yet.

    >>> os.environ["BRINELL_HOME"] = "/data/brinell"
    >>> home().as_posix()
    '/data/brinell'
    >>> del os.environ["BRINELL_HOME"]
    """
    chosen = os.environ.get("BRINELL_HOME")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brinell"
