"""Headless Chromium over the pipe of its debugging protocol; the standard library is all it needs.

with Browser() as browser:
    page = browser.page(390, 844)
    page.open(path.as_uri())
    assert page.run("document.title") == "…" and page.problems == []
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
# A machine that does other things may be slow; nothing waits this long otherwise.
PATIENCE = 90.0
KEYS = {
    "Enter": (13, "\r"), "Tab": (9, "\t"), " ": (32, " "), "Escape": (27, ""), "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""), "ArrowDown": (40, ""), "ArrowUp": (38, ""), "Home": (36, ""), "End": (35, ""),
}  # fmt: skip


class Browser:
    """One browser process with a profile of its own; messages are JSON, each ended by a zero byte."""

    def __enter__(self) -> "Browser":
        assert PROGRAM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._count, self._buffer, self.events = 0, b"", list[dict[str, Any]]()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads from 3 and writes to 4; high numbers first, lest one overwrites the other.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (theirs_in, theirs_out)]
        self._process = os.posix_spawn(
            PROGRAM,
            [PROGRAM, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            {**os.environ, "HOME": self._folder.name},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
            ],
            setpgroup=0,
        )
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)  # the group is its own: the browser and its children
        os.waitpid(self._process, 0)
        for fd in (self._in, self._out):
            os.close(fd)
        self._folder.cleanup()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask the browser and wait for its answer; events that come meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._next(end)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, method: str, session: str) -> dict[str, Any]:
        """The next event of a name, kept or to come."""
        end = time.monotonic() + PATIENCE
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event
            self.events.append(self._next(end))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser is gone")
            self._buffer += piece
        head, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(head)
        return message

    def page(self, width: int = 1280, height: int = 900, *, dark: bool = False, script: bool = True) -> "Page":
        """A new page of this size in CSS pixels."""
        return Page(self, width, height, dark=dark, script=script)


class Page:
    """One tab: what it asked the network for and what it complained about is kept."""

    def __init__(self, browser: Browser, width: int, height: int, *, dark: bool, script: bool) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.media(dark=dark)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser about this page."""
        return self._browser.call(method, self._session, **params)

    def size(self, width: int, height: int) -> None:
        """Change the size of the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def media(self, *, dark: bool = False, paper: bool = False) -> None:
        """Look at the page in the dark, or as it is printed."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[scheme, still])

    def open(self, url: str) -> None:
        """Go to an address and wait until it is loaded; the same page with another hash is not loaded again."""
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        if "loaderId" in answer:
            self._browser.wait("Page.loadEventFired", self._session)

    def reload(self) -> None:
        """Load the page again."""
        self.call("Page.reload")
        self._browser.wait("Page.loadEventFired", self._session)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"].get("exception", answer["exceptionDetails"])))
        return answer["result"].get("value")

    def until(self, script: str, wanted: Any) -> None:
        """Wait until an expression has a value, as it has after an event that the page has yet to see."""
        end = time.monotonic() + PATIENCE / 3
        while (found := self.run(script)) != wanted:
            assert time.monotonic() < end, f"{found} instead of {wanted}"
            time.sleep(0.02)

    def press(self, key: str, shift: bool = False) -> None:
        """Press and release a key."""
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        told = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **told)
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        """Type a text where the cursor is."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Scroll to the first element of a selector and click on its middle."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen as PNG; with `whole`, all of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _mine(self, *methods: str) -> list[dict[str, Any]]:
        self.run("0")  # everything that was under way has come by now
        return [e for e in self._browser.events if e.get("sessionId") == self._session and e["method"] in methods]

    @property
    def requests(self) -> list[str]:
        """Addresses the page asked for, data inside of it aside."""
        found = [e["params"]["request"]["url"] for e in self._mine("Network.requestWillBeSent")]
        return [url for url in found if not url.startswith("data:")]

    @property
    def problems(self) -> list[str]:
        """Errors and warnings in the console."""
        found = []
        for e in self._mine("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            told = e["params"]
            if "exceptionDetails" in told:
                found.append(json.dumps(told["exceptionDetails"]))
            elif told.get("type") in ("error", "warning", "assert"):
                found.append(json.dumps(told["args"]))
            elif told.get("entry", {}).get("level") in ("error", "warning"):
                found.append(told["entry"]["text"])
        return found
