"""Shapes are checked at run time in the tests of what computes; elsewhere they would take most of the time."""

import http.server
import importlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from jaxtyping import config, install_import_hook

import brinell.ops.types as shapes


def _check_shapes() -> None:
    """Make the names of shapes types that are checked at run time, before another module reads them."""
    for name, kind in vars(shapes).items():
        if described := getattr(kind, "__metadata__", ()):
            setattr(shapes, name, getattr(jaxtyping, described[0])[torch.Tensor, described[1]])


_check_shapes()
SOURCE = Path(__file__).resolve().parents[1] / "src"
# Decorating every function of the package would take most of the time of importing it.
WITH_SHAPES = [path for path in SOURCE.rglob("*.py") if "brinell.ops.types" in path.read_text()]
HOOK = install_import_hook(
    [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in WITH_SHAPES],
    "beartype.beartype",
)

from brinell.results.format import folders  # noqa: E402

torch.set_num_threads(1)

# Tests are no package: under this name they import the source of files below.
sys.modules["serving"] = sys.modules[__name__]


# Between them these run every function of the package that has shapes.
CHECKED = ("tests/ops/", "tests/core/", "tests/engine/", "tests/attacks/test_conformance", "tests/models/")


@contextmanager
def _checked(yes: bool) -> Iterator[None]:
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", not yes)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module", autouse=True)
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks of shapes at run time, where they are made."""
    with _checked(any(part in request.node.nodeid for part in CHECKED)):
        yield


# The checks after the attacks take more than half of an evaluation of few samples. These tests make them, on sound
# models and on others; so do the examples in docstrings.
EXAMINED = (
    "tests/checks/", "tests/compat/", "tests/cost/", "tests/defences/", "tests/detectors/", "tests/evaluation/",
    "tests/autoattack/test_checks", "tests/autoattack/test_defences", "tests/autoattack/test_eleven",
    "tests/cli/test_adaptive", "tests/cli/test_verbs", "tests/fast/test_escalate", "tests/test_docs",
    "tests/results/", "tests/test_reference", "tests/verification/test_honest_runs",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _survivors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks after the attacks, where they are made."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(part in request.node.nodeid for part in EXAMINED):
            evaluation = importlib.import_module("brinell.evaluation.evaluate")
            patch.setattr(evaluation, "run_survivor_checks", lambda *_: [])
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """Files are not flushed to the disk, which matters when the power fails; tests of the order of calls see them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _default_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without a folder do not lie in the working directory, where the next test would find them."""
    monkeypatch.setattr(folders, "PARENT", str(tmp_path_factory.getbasetemp() / f"runs-{uuid.uuid4().hex}"))


@pytest.fixture(scope="module")
def unchecked(_shapes: None) -> Iterator[None]:
    """No checks of shapes at run time: other tests make them on the same code."""
    with _checked(False):
        yield


@pytest.fixture(scope="session")
def shapes_checked() -> Callable[[bool], AbstractContextManager[None]]:
    """A context in which shapes are checked at run time, or not."""
    return _checked


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Run of few samples may be reliable: tests of other rules of the verdict take no more than they need."""
    monkeypatch.setattr("brinell.results.verdict.FEWEST", 1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden numbers; what needs it skips where it is absent."""
    folder = Path(os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"needs the golden numbers in {folder} (set BRINELL_SHARED)")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a GPU skips where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
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
