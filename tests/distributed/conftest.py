"""Small problems, and a way to look at Runs that leaves out what may differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import brinell
from brinell import Run

# How fast and where a row was computed, and where its adversarial lies, may differ between two equal evaluations.
INCIDENTAL = ("seconds", "device", "adv_shard", "adv_row")


def outcome(run: Run) -> pa.Table:
    return run.rows().drop_columns(list(INCIDENTAL)).combine_chunks()


def stored_rows(run: Run) -> int:
    """Rows on disk; `Run.rows` would hide duplicates."""
    return run.shards.all_rows().num_rows


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Run, Run], None]:
    def check(run: Run, reference: Run) -> None:
        assert run.finished
        assert outcome(run).equals(outcome(reference))
        assert stored_rows(run) == run.rows().num_rows, "a row was stored twice"
        a, b = run.adversarials(), reference.adversarials()
        assert np.array_equal(a.ids, b.ids)
        assert np.array_equal(a.x, b.x)

    return check


def small_net() -> nn.Module:
    """A linear classifier of small images, with fixed weights."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) / 7)
    return net.eval()


def small_data(n: int) -> brinell.Problem:
    """Images, nine in ten with the label the net gives them."""
    x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    y = small_net()(x).argmax(1)
    return brinell.Problem(x, torch.where(torch.arange(n) % 10 == 3, (y + 1) % 5, y))


@pytest.fixture(scope="session")
def data() -> Callable[[int], brinell.Problem]:
    return small_data


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Run]:
    """An evaluation of the small net into a new folder, without progress."""
    count = 0

    def run(n: int = 100, plan: Any = "pgd20", **more: Any) -> Run:
        nonlocal count
        count += 1
        usual: dict[str, Any] = {"out": tmp_path / f"run{count}", "slots": 32, "progress": False}
        problem = more.pop("problem", None) or small_data(n)
        threat = more.pop("threat", None) or brinell.Linf(0.02)
        model = more.pop("classifier", None) or small_net()
        return brinell.evaluate(model, problem, threat, plan, **{**usual, **more})

    return run
