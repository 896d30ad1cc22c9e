"""ResNet-18 and PreAct-ResNet-18: the published layouts, and the published networks' own arithmetic."""

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from brinell import InputError, PlanError
from brinell.models.arch import network
from brinell.models.networks import NETWORKS, Network

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


def fill(net: nn.Module) -> None:
    """Weights from the names alone, by the rule the golden logits were made with."""
    state = net.state_dict()
    for key, value in state.items():
        if not value.is_floating_point() or key in ("mu", "sigma"):
            continue
        r, shape = np.random.RandomState(zlib.crc32(key.encode())), tuple(value.shape)
        if len(shape) >= 2:
            new = r.standard_normal(shape) * math.sqrt(2 / np.prod(shape[1:]))
        elif "running_var" in key:
            new = 0.5 + r.random_sample(shape)
        elif "running_mean" in key:
            new = 0.1 * r.standard_normal(shape)
        elif key.endswith("weight"):
            new = 1 + 0.1 * r.standard_normal(shape)
        else:
            new = 0.1 * r.standard_normal(shape)
        state[key] = torch.from_numpy(new).float()
    net.load_state_dict(state)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("made", "layout"),
    [
        (Network("resnet18"), "L78394a89"),
        (Network("preact-resnet18", mean=MEAN, std=STD), "L02081fa6"),
        (Network("preact-resnet18", classes=100), "Lc86c45f1"),
    ],
    ids=["resnet18", "preact normalised", "preact 100 classes"],
)
def test_published_layout_and_logits(made: Network, layout: str, shared: Path) -> None:
    with gzip.open(shared / "golden" / "zoo_layouts.json.gz") as file:
        stored: dict[str, Any] = json.load(file)
    net = made.build().eval()
    assert [[k, list(v.shape)] for k, v in net.state_dict().items()] == stored["layouts"][layout]
    logits = next(r[5] for r in stored["records"] if r[3] == layout)
    fill(net)
    x = torch.from_numpy(np.random.RandomState(0).random_sample((4, 3, 32, 32))).float()
    with torch.no_grad():
        torch.testing.assert_close(net(x)[:, :10], torch.tensor(logits), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["resnet18", "preact-resnet18"])
def test_normalisation_is_inside(name: str) -> None:
    plain, normal = Network(name).build().eval(), Network(name, mean=MEAN, std=STD).build().eval()
    normal.load_state_dict({**plain.state_dict(), "mu": normal.mu, "sigma": normal.sigma})
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mu, sigma = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    assert torch.allclose(normal(x), plain((x - mu) / sigma), atol=1e-5)


def test_networks_are_data() -> None:
    made = Network("preact-resnet18", 7, 1, (0.5,), (0.25,))
    assert Network.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.build()(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    assert sorted(NETWORKS) == list(NETWORKS)


def test_wide_resnet_34_10_is_the_published_network() -> None:
    """46,160,474 weights for ten classes, 34 convolutions with those of the shortcuts, and the layout of the zoo's."""
    with torch.device("meta"):
        made = Network("wide-resnet-34-10").build()
        card = network({"family": "wide-resnet", "depth": 34, "width": 10, "classes": 10})
        grey = Network("wide-resnet-34-10", 7, 1).build()
    assert sum(w.numel() for w in made.parameters()) == 46_160_474
    assert sum(isinstance(m, nn.Conv2d) for m in made.modules()) == 34
    shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (made, card)]
    assert shapes[0] == shapes[1]
    assert grey(torch.zeros(2, 1, 16, 16, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("wrong", "error", "hint"),
    [
        (lambda: Network("resnet"), PlanError, "'resnet18'"),
        (lambda: Network("wrn-34-10"), PlanError, "'wide-resnet-34-10'"),
        (lambda: Network("resnet18", classes=1), InputError, "2 classes"),
        (lambda: Network("resnet18", mean=(0.5,)), InputError, r"per channel \(3\)"),
        (lambda: Network("resnet18", std=(0.2, 0.0, 0.2)), InputError, "above 0"),
        (lambda: Network("demo").build(), InputError, "one channel"),
    ],
    ids=["name", "wide name", "classes", "mean", "std", "demo"],
)
def test_impossible_networks(wrong: Any, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint):
        wrong()
