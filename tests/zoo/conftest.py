"""A source of weights on this machine: what it serves, how often it hangs up, and what was asked of it."""

import http.server
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from brinell.models.zoo import card as zoo_card
from brinell.models.zoo.card import Card, File, Keys

# Tests are no package: under this name they import what is here.
sys.modules["zoo_helpers"] = sys.modules[__name__]

TINY = {"family": "wide-resnet", "depth": 10, "width": 1, "classes": 10}


@dataclass
class Source:
    """Files by path; `cuts` connections break after `cut_at` bytes; `asked` holds path and Range of each request."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    cut_at: int = 0
    version: str = '"1"'
    asked: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    source: Source

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        source, wanted = self.source, self.headers.get("Range")
        source.asked.append((self.path, wanted))
        if self.path not in source.files:
            self.send_error(404)
            return
        body, start = source.files[self.path], 0
        if wanted is not None and self.headers.get("If-Range") == source.version:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", source.version)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if source.cuts > 0:
            source.cuts -= 1
            self.wfile.write(body[start : start + source.cut_at])
            return
        self.wfile.write(body[start:])


@pytest.fixture
def source() -> Iterator[Source]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.source = Source(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Handler.source
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no mirror, online."""
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path / "home"))
    for name in ("BRINELL_MIRROR", "BRINELL_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def made(name: str, *files: File, keys: Keys | None = None, network: Any = None) -> Card:
    return Card(
        name=name,
        paper="",
        venue="",
        licence="MIT",
        architecture="WideResNet-10-1",
        network=TINY if network is None else network,
        files=files,
        keys=keys or Keys(),
        eps="8/255",
        clean_accuracy=0.5,
        robust_accuracy=0.25,
        best_known=None,
        unreliable=False,
        extra_data=False,
        preprocessing=None,
        missing="",
        unloadable="",
        evidence="none",
    )


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds a card to the zoo for the length of a test."""

    def adder(card: Card) -> Card:
        monkeypatch.setitem(zoo_card._all(), card.name, card)
        return card

    return adder


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[torch.nn.Module, bytes]:
    """A small network and its checkpoint, as training scripts write them."""
    from brinell.models.arch import network

    net = network(TINY).eval()
    path = tmp_path / "tiny.pt"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, path)
    return net, path.read_bytes()
