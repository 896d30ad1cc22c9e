"""The files shipped for the demonstration: small, well-formed, and a model worth attacking."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brinell.data.demo import demo
from brinell.models.demo import demo_net

EPS = 0.1
LIMIT = 3_000_000  # bytes, all shipped files together


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return demo()


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return demo_net()


def correct(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return (net(x).argmax(1) == y).double().mean().item()


def pgd20(net: nn.Module, x0: Tensor, y: Tensor) -> Tensor:
    lo, hi = (x0 - EPS).clamp(min=0), (x0 + EPS).clamp(max=1)
    x = lo + (hi - lo) * torch.rand(x0.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        x.requires_grad_(True)
        (grad,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
        x = torch.clamp(x.detach() + EPS / 4 * grad.sign(), lo, hi)
    return x


def test_images_are_thousand_grey_squares_in_the_unit_box(images):
    x, y = images
    assert x.shape == (1000, 1, 28, 28)
    assert x.dtype == torch.float32
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)
    assert torch.equal((x * 255).round() / 255, x), "pixels must be exact multiples of 1/255"
    assert y.shape == (1000,)
    assert y.dtype == torch.int64


def test_every_class_is_present_in_fair_share(images):
    counts = torch.bincount(images[1], minlength=10)
    assert counts.shape == (10,)
    assert counts.min() >= 80
    assert counts.max() <= 120


def test_images_are_the_callers_own(images):
    x, _ = demo()
    x.zero_()
    assert demo()[0].max() == 1


def test_the_net_is_frozen_float32_and_in_evaluation_mode(net):
    assert not net.training
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in net.parameters())


def test_rows_do_not_mix(net, images):
    x, _ = images
    assert torch.allclose(net(x[:64])[7], net(x[7:8])[0], atol=1e-5)


def test_shipped_files_stay_small():
    shipped = [f for package in ("brinell.data", "brinell.models") for f in (files(package) / "files").iterdir()]
    sizes = {f.name: len(f.read_bytes()) for f in shipped if f.is_file()}
    assert {"fashion_mnist_1000.npz", "demo.safetensors", "NOTICE"} <= sizes.keys()
    assert sum(sizes.values()) < LIMIT, sizes


def test_the_net_is_accurate_and_resists(net, images):
    x, y = images
    clean, attacked = correct(net, x, y), correct(net, pgd20(net, x, y), y)
    assert clean >= 0.80
    assert attacked >= 0.65
    assert attacked < clean - 0.05, "PGD found next to nothing: is there a gradient?"
