"""Data for verification, and a place for Runs without a folder."""

import tempfile
from collections.abc import Iterator

import pytest

import brinell


@pytest.fixture(scope="session", autouse=True)
def _runs_without_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put Runs without a folder where pytest cleans up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="session")
def problem() -> brinell.Problem:
    return brinell.data.load("demo")[:40]
