"""Serve a leaderboard site on this computer."""

import os
import webbrowser
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from brinell.errors import InputError

HERE = "127.0.0.1"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...

    def send_head(self) -> Any:
        """Answer with an error for links that lead out of the site, which somebody else may have made."""
        if not Path(self.translate_path(self.path)).resolve().is_relative_to(Path(self.directory).resolve()):
            self.send_error(HTTPStatus.NOT_FOUND, "File not found")
            return None
        return super().send_head()


def server(site: str | os.PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """Return an HTTP server of the folder `site` on 127.0.0.1; port 0 chooses a free port."""
    if not (Path(site) / "index.html").is_file():
        raise InputError(
            expected="a folder with a site",
            got=f"{site}, which has no index.html",
            remedy="Build the site with brinell leaderboard build --out FOLDER.",
        )
    try:
        return ThreadingHTTPServer((HERE, port), partial(_Quiet, directory=os.fspath(site)))
    except (OSError, OverflowError) as error:
        raise InputError(
            expected="a free port", got=f"{port}: {error}", remedy="Pass --port 0 for any free port."
        ) from error


def serve(
    site: str | os.PathLike[str], port: int = 0, browser: bool = True, tell: Callable[[str], object] = lambda url: None
) -> None:
    """Serve the site until interrupted; call `tell` with its address and, if `browser`, open it in the browser."""
    with server(site, port) as made:
        url = f"http://{HERE}:{made.server_address[1]}/"
        tell(url)
        if browser:
            webbrowser.open(url)
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            return
