"""Shapes are checked at run time in every test."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

HOOK = install_import_hook("brinell", "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)


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
