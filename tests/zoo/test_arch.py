"""Parts of the networks against closed forms; whole networks against recorded layouts and golden logits."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brinell.models.arch import FAMILIES, network
from brinell.models.arch.deepmind import MeanSparse, Squeeze
from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import Pssilu, same
from brinell.models.arch.resnest import SplitAttention
from brinell.models.arch.sodef import Flow
from brinell.models.wrap import wrap
from brinell.models.zoo import cards

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo_layouts.py"
SMALL = (
    "cifar10/Linf/Andriushchenko2020Understanding",
    "cifar10/Linf/Sehwag2021Proxy_R18",
    "cifar10/Linf/Ding2020MMA",
    "cifar10/Linf/Rebuffi2021Fixing_R18_ddpm",
    "cifar10/corruptions/Hendrycks2020AugMix_WRN",
    "cifar10/corruptions/Hendrycks2020AugMix_ResNeXt",
    "cifar100/Linf/Rice2020Overfitting",
)
TINY: dict[str, dict[str, Any]] = {
    "binary-resnet": {"widths": [8, 8, 16, 16]},
    "cosine-wide-resnet": {"depth": 10, "width": 1},
    "deepmind-preact-resnet": {},
    "deepmind-wide-resnet": {"depth": 10, "width": 1, "sparse": True, "squeeze": 0.25},
    "ensemble": {"n": 2, "member": {"family": "wide-resnet", "depth": 10, "width": 1, "classes": 7}},
    "preact-resnet": {"blocks": [1, 1, 1, 1]},
    "pruned-resnet": {"width": 8},
    "resnest": {"blocks": [1, 1, 1, 1]},
    "resnet": {"blocks": [1, 1, 1, 1], "block": "pre-bottleneck"},
    "resnext": {"depth": 11},
    "small-cnn": {},
    "sodef": {"depth": 10, "width": 1},
    "staged-wide-resnet": {"depths": [1, 1, 1], "widths": [8, 16, 24], "nested": True},
    "wide-resnet": {"depth": 10, "width": 1, "spare": True},
}


@pytest.fixture(scope="module")
def layouts() -> Any:
    found = importlib.util.spec_from_file_location("zoo_layouts", BENCHMARK)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------- golden


@pytest.mark.golden
@pytest.mark.parametrize("name", SMALL)
def test_small_networks_give_the_golden_logits(name: str, layouts: Any, shared: Path) -> None:
    records, _ = layouts.recorded(shared)
    assert layouts.error(cards()[name].network, records[name][2]) < layouts.TOLERANCE


@pytest.mark.golden
def test_every_recorded_layout_is_ours(layouts: Any, shared: Path) -> None:
    """Names and shapes of 149 networks; the two exceptions are explained and checked without what was not recorded."""
    records, recorded = layouts.recorded(shared)
    different = {
        name: layouts.compare(name, cards()[name].network, recorded[record[0]])
        for name, record in records.items()
        if record[0] != "unbuilt"
    }
    assert len(different) == 149
    assert all(cards()[n].evidence == ("layout" if records[n][2] is None else "logits") for n in different)
    assert {n: why for n, why in different.items() if why} == layouts.KNOWN


@pytest.mark.slow
@pytest.mark.golden
def test_every_network_gives_the_golden_logits(layouts: Any, shared: Path) -> None:
    records, _ = layouts.recorded(shared)
    wanted = {str([cards()[n].network, r[2]]): (n, r[2]) for n, r in records.items() if r[0] != "unbuilt" and r[2]}
    errors = {n: layouts.error(cards()[n].network, golden) for n, golden in wanted.values()}
    assert len(errors) > 30
    assert {n: e for n, e in errors.items() if not e < layouts.TOLERANCE} == {}


# ------------------------------------------------------------------------------------- every family


def test_every_family_is_tried_here() -> None:
    assert set(TINY) == set(FAMILIES) - {"alexnet", "demo"}


@pytest.mark.parametrize("family", TINY)
def test_rows_are_answered_alone(family: str) -> None:
    """A row's logits are its own whatever its neighbours, and gradients reach the input."""
    numbers = {"family": family, **TINY[family]} | ({} if family == "ensemble" else {"classes": 7})
    net, x = network(numbers).eval(), torch.rand(3, 3, 32, 32, requires_grad=True)
    out = net(x)
    assert out.shape == (3, 7)
    torch.testing.assert_close(net(x[1:2]), out[1:2], rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(out[0].sum(), x)
    assert bool(grad[0].abs().sum() > 0) and bool((grad[1:] == 0).all())


def test_alexnet_has_its_well_known_size() -> None:
    with torch.device("meta"):
        net = network({"family": "alexnet"})
    assert sum(p.numel() for p in net.parameters()) == 61_100_840
    assert net(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_the_spare_group_is_not_used() -> None:
    net, x = network({"family": "wide-resnet", **TINY["wide-resnet"]}).eval(), torch.rand(2, 3, 32, 32)
    before = net(x)
    with torch.no_grad():
        for p in net.sub_block1.parameters():  # type: ignore[union-attr]
            p.fill_(math.nan)
    assert torch.equal(net(x), before)


# ------------------------------------------------------------------------------------------- parts


def test_normalisation_is_the_declared_one() -> None:
    x = torch.rand(2, 3, 4, 4)
    net = NormalizedNetwork(Inputs((0.1, 0.2, 0.3), (0.5, 0.25, 2.0), stored=True))
    want = torch.stack([(x[:, 0] - 0.1) / 0.5, (x[:, 1] - 0.2) / 0.25, (x[:, 2] - 0.3) / 2.0], 1)
    torch.testing.assert_close(net.normalised(x), want)
    assert list(net.state_dict()) == ["mu", "sigma"]
    assert list(NormalizedNetwork(Inputs((0.5,), (0.5,))).state_dict()) == []
    assert NormalizedNetwork(Inputs()).normalised(x) is x


def test_normalisation_is_part_of_the_fingerprint() -> None:
    config = {"family": "wide-resnet", "depth": 10, "width": 1}
    net = network(config)
    other = network({**config, "inputs": {"mean": [0.5] * 3, "std": [0.5] * 3}})
    other.load_state_dict(net.state_dict())
    assert wrap(net).fingerprint != wrap(other).fingerprint


def test_images_are_standardised_one_by_one() -> None:
    x = torch.rand(2, 3, 8, 8)
    flat = torch.full((1, 3, 8, 8), 0.3)
    got = NormalizedNetwork(Inputs(per_image=True)).normalised(torch.cat([x, flat]))
    torch.testing.assert_close(got[:2].mean((1, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(got[:2].flatten(1).std(1), torch.ones(2))
    torch.testing.assert_close(got[2], torch.zeros(3, 8, 8), atol=1e-5, rtol=0)


def test_same_padding_sees_what_tensorflow_sees() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[0, 0, 0, 0] = 1  # picks the upper left of each window
    picked = torch.conv2d(same(x, 2), kernel, stride=2)
    assert picked.flatten().tolist() == [0.0, 2.0, 8.0, 10.0]


def test_pssilu_is_silu_at_its_start() -> None:
    x = torch.linspace(-4, 4, 33)
    torch.testing.assert_close(Pssilu()(x), nn.functional.silu(x))


def test_mean_sparse_replaces_what_is_near_the_mean() -> None:
    part = MeanSparse(2)
    x = torch.tensor([[[[0.0, 1.4, 2.6]], [[0.0, 1.4, 2.6]]]])
    assert torch.equal(part(x), x)
    part.running_mean.copy_(torch.tensor([1.0, 0.0]))
    part.running_var.copy_(torch.tensor([4.0, 0.25]))
    part.threshold.fill_(0.5)
    assert part(x).tolist() == torch.tensor([[[[0.0, 1.0, 2.6]], [[0.0, 1.4, 2.6]]]]).tolist()


def test_squeeze_without_weights_halves() -> None:
    part, x = Squeeze(4, 0.5), torch.rand(2, 4, 3, 3)
    for p in part.parameters():
        nn.init.zeros_(p)
    torch.testing.assert_close(part(x), x / 2)


def test_split_attention_of_equal_candidates_is_the_candidate() -> None:
    """The weights of the candidates add up to one, whatever they are."""
    part, x = SplitAttention(8, 4, nn.Identity()).eval(), torch.rand(2, 8, 5, 5)
    with torch.no_grad():
        one = torch.rand(8, 2, 3, 3)
        part.conv.weight.copy_(one.repeat(4, 1, 1, 1))
        same_for_all = x[:, :2].repeat(1, 4, 1, 1)
        want = part.bn0(torch.conv2d(same_for_all[:, :2], one, padding=1).repeat(1, 4, 1, 1))[:, :8]
        torch.testing.assert_close(part(same_for_all), want)


def test_flow_follows_the_exact_solution() -> None:
    """dz/dt = −sin z has the solution tan(z/2) = tan(z₀/2) e^(−t)."""
    flow = Flow(3)
    layer = flow.odefunc.fc1["_layer"]
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
        layer.bias.zero_()
    z = torch.tensor([[0.1, 1.0, 3.0], [-0.5, 2.0, -3.1]])
    want = 2 * torch.atan(torch.tan(z / 2) * math.exp(-5))
    torch.testing.assert_close(flow(z), want, rtol=1e-4, atol=1e-5)


def test_cosine_logits_do_not_see_the_length_of_the_weights() -> None:
    net, x = network({"family": "cosine-wide-resnet", "depth": 10, "width": 1}).eval(), torch.rand(2, 3, 32, 32)
    before = net(x)
    with torch.no_grad():
        net.fc.weight.mul_(7)  # type: ignore[union-attr]
    torch.testing.assert_close(net(x), before)
    assert float(before.detach().abs().max()) <= 1


def test_an_ensemble_averages_probabilities() -> None:
    net, x = network({"family": "ensemble", **TINY["ensemble"]}).eval(), torch.rand(2, 3, 32, 32)
    want = torch.stack([member(x).softmax(1) for member in net.models]).mean(0)  # type: ignore[union-attr]
    torch.testing.assert_close(net(x).exp(), want)
