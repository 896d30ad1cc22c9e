"""Iterated FGSM for transfer: momentum, diverse inputs and smoothed gradients against their definitions."""

from typing import Any

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import DIFGSM, MIFGSM, PGD, TIFGSM
from brinell.attacks.gradient.transfer import _Resize, gaussian, smooth
from brinell.models.demo import demo_net
from brinell.ops import rng
from brinell.testing import duel

X, Y = brinell.data.load("demo", 12)
EVERY = {"seed": 0, "transfer": True}


def drawn(rate: float, x: torch.Tensor) -> _Resize:
    return _Resize.drawn(rng.keys(1, torch.arange(len(x))), 1.0, rate, x)


def test_resizing_is_torch_s_bilinear_one_on_black() -> None:
    x = torch.rand(6, 3, 11, 9)
    view = drawn(0.5, x)
    made = view.forth(x)
    for i in range(len(x)):
        (h, w), (top, left) = ([int(v[i]) for v in pair] for pair in (view.sides, view.corners))
        wanted = torch.zeros(1, 3, 11, 9)
        small = nn.functional.interpolate(x[i : i + 1], size=(h, w), mode="bilinear", align_corners=False)
        wanted[..., top : top + h, left : left + w] = small
        assert 5 <= h <= 11 and 4 <= w <= 9 and top + h <= 11 and left + w <= 9
        assert torch.allclose(made[i : i + 1], wanted, atol=1e-6)
    assert len({float(h) for h in view.sides[0]}) > 1


@pytest.mark.parametrize("rate", [0.3, 0.9, 1.0])
def test_gradients_go_back_through_the_resizing(rate: float) -> None:
    x = torch.rand(5, 2, 12, 10, requires_grad=True)
    view, g = drawn(rate, x), torch.rand(5, 2, 12, 10)
    (wanted,) = torch.autograd.grad((view.forth(x) * g).sum(), x)
    assert torch.allclose(view.back(g), wanted, atol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 15])
def test_smoothing_is_a_convolution(size: int) -> None:
    g, weights = torch.randn(3, 2, 9, 10), torch.tensor(gaussian(size))
    kernel = (weights[:, None] * weights)[None, None].expand(2, 1, -1, -1)
    wanted = nn.functional.conv2d(g, kernel, padding=size // 2, groups=2)
    assert torch.allclose(smooth(g, gaussian(size)), wanted, atol=1e-6)


def test_momentum_and_its_special_cases() -> None:
    threat = brinell.Linf(0.1)
    momentum = MIFGSM(6, 0.25)("demo", X, Y, threat, **EVERY)
    assert torch.equal(momentum, PGD(6, 0.25, momentum=1.0, random_start=False)("demo", X, Y, threat, **EVERY))
    assert torch.equal(momentum, DIFGSM(6, 0.25, probability=0.0)("demo", X, Y, threat, **EVERY))
    assert torch.equal(momentum, TIFGSM(6, 0.25, kernel=1)("demo", X, Y, threat, **EVERY))
    for other in (DIFGSM(6, 0.25), TIFGSM(6, 0.25, kernel=3)):
        assert not torch.equal(momentum, other("demo", X, Y, threat, **EVERY))
    # Noise is keyed: another seed resizes otherwise.
    one, two = (DIFGSM(6, 0.25, probability=1.0)("demo", X, Y, threat, seed=s, transfer=True) for s in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_a_linear_model_is_broken_at_its_distance_and_not_before(norm: str) -> None:
    world = duel(shape=(1, 6, 6), n=8)
    for share, broken in ((0.99, False), (1.01, True)):
        threat = brinell.core.threat.threat(norm, share * world.distance(norm))
        rows = brinell.attack(world.classifier, (world.x, world.y), threat, MIFGSM(10, 0.25))
        assert rows["broken"].to_pylist() == [broken] * 8


def test_a_resized_image_is_never_a_candidate() -> None:
    """A model that is wrong on every image with a black row breaks no sample through the padding."""

    class BlackRow(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            dark = (x.amax((1, 3)) <= 0).any(1).float()
            return torch.stack([1 - 2 * dark, 0 * dark, -1 + 0 * dark], 1) + 1e-3 * x.sum((1, 2, 3))[:, None]

    x, y = 0.3 + 0.4 * torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.long)
    rows = brinell.attack(
        BlackRow().eval(), (x, y), brinell.Linf(0.1), DIFGSM(12, probability=1.0, rate=0.5), early_exit=False
    )
    assert rows["broken"].to_pylist() == [False] * 6


def test_flat_inputs_are_attacked_without_resizing() -> None:
    flat = nn.Sequential(nn.Unflatten(1, (1, 28, 28)), demo_net()).eval()
    threat, x = brinell.Linf(0.1), X.flatten(1)
    for attack in (DIFGSM(4, 0.25, probability=1.0), TIFGSM(4, 0.25)):
        assert torch.equal(attack(flat, x, Y, threat, **EVERY), MIFGSM(4, 0.25)(flat, x, Y, threat, **EVERY))


def test_wrong_numbers() -> None:
    for make in (lambda: DIFGSM(probability=2), lambda: DIFGSM(rate=0), lambda: TIFGSM(kernel=4), lambda: MIFGSM(0)):
        with pytest.raises(brinell.PlanError):
            make()
