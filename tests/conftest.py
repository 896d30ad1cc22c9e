"""Shapes are checked at run time in every test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import config, install_import_hook

HOOK = install_import_hook("brinell", "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """No checks of shapes at run time: other tests make them on the same code, and they take most of the time."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


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
