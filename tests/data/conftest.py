"""Images for the tests of corruptions."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def load_pictures() -> ModuleType:
    """The module beside this file: the tests are no package, so that it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("brinell_test_pictures", Path(__file__).with_name("pictures.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
