"""A small client of Chromium's debugging protocol, over the pipe that it offers; the standard library suffices."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Chromium reads from descriptor 3 and writes to 4; first out of the way, lest one overwrite the other.
LAUNCH = """
import os, sys
for given, aside in zip(sys.argv[1:3], (103, 104)):
    os.dup2(int(given), aside)
for aside, wanted in ((103, 3), (104, 4)):
    os.dup2(aside, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds for one answer


class Browser:
    """One page: what it logs and asks the network for is kept."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write, self.buffer, self.last = read, write, b"", 0
        self.session = ""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask and wait for the answer."""
        self.last += 1
        message: dict[str, Any] = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            got = self._next(end)
            if got.get("id") == self.last:
                assert "error" not in got, got
                return dict(got["result"])
            self.events.append(got)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            self.buffer += os.read(self.read, 1 << 20)
        text, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(text))

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + PATIENCE
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next(end))

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what the page looks like."""
        got = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(got["data"]))

    def requests(self) -> list[str]:
        """Addresses that were asked for, apart from the page itself and what it holds."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [u for u in urls[1:] if not u.startswith("data:")]

    def complaints(self) -> list[str]:
        """Errors, warnings and other words on the console."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium of one's own, ended afterwards."""
    assert CHROMIUM
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command = [CHROMIUM, *flags, "--no-first-run", "--remote-debugging-pipe", "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(their_in), str(their_out), *command], pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_in), os.close(their_out)
        made = Browser(our_in, our_out)
        try:
            target = made.call("Target.createTarget", url="about:blank")["targetId"]
            made.session = made.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                made.call(f"{domain}.enable")
            yield made
        finally:
            process.terminate()
            process.wait(30)
            os.close(our_in), os.close(our_out)
