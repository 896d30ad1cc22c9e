"""Small models and data, and a way to look at rows that leaves out what may differ."""

import tempfile
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import brinell

# How fast and where a row was computed, and where its adversarial lies, may differ between two equal evaluations.
INCIDENTAL = ("seconds", "device", "adv_shard", "adv_row")


@pytest.fixture(scope="session", autouse=True)
def _runs_without_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is evaluated without a folder goes where pytest cleans up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="session")
def problem() -> brinell.Problem:
    return brinell.data.load("demo")[:40]


@pytest.fixture(scope="session")
def outcome() -> Callable[[pa.Table], pa.Table]:
    """Rows without the incidental columns."""

    def strip(table: pa.Table) -> pa.Table:
        return table.drop_columns([c for c in INCIDENTAL if c in table.column_names]).combine_chunks()

    return strip


@pytest.fixture(scope="session")
def linear() -> Callable[..., nn.Module]:
    """A linear classifier of flat or image inputs with fixed weights."""

    def make(inputs: int, classes: int) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
        generator = torch.Generator().manual_seed(classes)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / inputs**0.5)
        return net.eval()

    return make


@pytest.fixture(scope="session")
def points() -> Callable[..., tuple[Tensor, Tensor]]:
    """Inputs in the box and the labels a net gives them."""

    def make(net: nn.Module, n: int, *shape: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(n))
        logits = net(x)
        return x, logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()

    return make
