"""Print a page as PDF with the Chromium or Chrome that is installed."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from brinell.errors import MissingExtra, StorageError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-pdf-header-footer",
)  # fmt: skip
PATIENCE = 120
# The times that Chromium writes into a PDF; the date of the dossier replaces them.
TIME = re.compile(rb"/(CreationDate|ModDate) \(D:\d{14}")


def printed(page: str, date: str) -> bytes:
    """Return a page as PDF; its times are the start of the day `date`, so that the same page gives the same file."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise MissingExtra(
            expected="Chromium or Chrome on the PATH, which prints the PDF", got="none of them",
            remedy="Install one (apt-get install chromium), or write a .html file and print it from any browser.",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, target = Path(folder, "dossier.html"), Path(folder, "dossier.pdf")
        source.write_text(page, encoding="utf-8")
        # Chromium refuses its sandbox to root. The page has no scripts and loads nothing.
        root = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        command = [
            program,
            *FLAGS,
            *root,
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=PATIENCE, env={**os.environ, "HOME": folder}
            )
            data = target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise StorageError(
                expected=f"{program} to print the page", got=f"{type(error).__name__}: {str(error)[-200:]}",
                remedy="Write a .html file and print it from a browser.",
            ) from error  # fmt: skip
    return TIME.sub(rb"/\1 (D:" + date.replace("-", "").encode() + b"000000", data)
