"""Cards of models that no zoo has, and a small network with its checkpoint."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import Source

from brinell.models.zoo import card as zoo_card
from brinell.models.zoo.card import Card, Keys, WeightFile

__all__ = ["Source", "made"]

# Tests are no package: under this name they import what is here.
sys.modules["zoo_helpers"] = sys.modules[__name__]

TINY = {"family": "wide-resnet", "depth": 10, "width": 1, "classes": 10}


def made(name: str, *files: WeightFile, keys: Keys | None = None, network: Any = None) -> Card:
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
