"""Shapes are checked at run time in the tests of what computes; elsewhere they would take most of the time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jaxtyping import config, install_import_hook

HOOK = install_import_hook("brinell", "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)


# Between them these run every function of the package that has shapes.
CHECKED = ("tests/ops/", "tests/core/", "tests/engine/", "tests/attacks/test_conformance", "tests/models/")


@contextmanager
def _disabled(yes: bool) -> Iterator[None]:
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", yes)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module", autouse=True)
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks of shapes at run time, where they are made."""
    with _disabled(not any(part in request.node.nodeid for part in CHECKED)):
        yield


@pytest.fixture(scope="module")
def unchecked(_shapes: None) -> Iterator[None]:
    """No checks of shapes at run time: other tests make them on the same code."""
    with _disabled(True):
        yield


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
