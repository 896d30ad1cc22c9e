"""Networks with drawn weights are the same in every run of a test, whichever ran before it and beside it."""

import gc
import os
import random
import zlib

import numpy as np
import pytest
import torch
from jaxtyping import config

# Tests choose for themselves (tests/conftest.py); examples in docstrings run as users run them.
config.update("jaxtyping_disable", True)

# Modules and tests stay until the end: the garbage collector does not look at them again and again.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _seed(what: str) -> None:
    """A state of its own for the generators of torch, numpy and Python; BRINELL_TEST_SEED gives another one."""
    seed = zlib.crc32(f"{os.environ.get('BRINELL_TEST_SEED', '0')} {what}".encode())
    torch.manual_seed(seed)  # noqa: TID251
    np.random.seed(seed)  # noqa: NPY002, TID251
    random.seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    _seed(collector.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: "pytest.FixtureDef[object]") -> None:
    _seed(fixturedef.argname)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _seed(item.nodeid)
