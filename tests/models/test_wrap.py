"""Any module becomes a classifier: normalisation inside, logits in rows, a fingerprint of what decides the output."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import ModelError, wrap
from brinell.core.model import Classifier
from brinell.models.demo import demo_net


def small(seed: int = 0) -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return net


@pytest.fixture
def x() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Returns(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


def test_a_wrapped_module_is_a_classifier() -> None:
    assert isinstance(wrap(small()), Classifier)


def test_normalisation_per_channel(x: Tensor) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    net = small()
    shifted = (x - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)
    assert torch.equal(wrap(net, mean=mean, std=std).forward(x).logits, net(shifted))


def test_normalisation_by_one_number(x: Tensor) -> None:
    net = small()
    assert torch.equal(wrap(net, mean=0.5, std=0.25).forward(x).logits, net((x - 0.5) / 0.25))
    assert torch.equal(wrap(net, mean=0.5).forward(x).logits, net(x - 0.5))


def test_normalisation_of_flat_inputs() -> None:
    net, x = nn.Linear(4, 3).eval(), torch.rand(2, 4)
    mean = [0.1, 0.2, 0.3, 0.4]
    assert torch.equal(wrap(net, mean=mean).forward(x).logits, net(x - torch.tensor(mean)))


def test_normalisation_for_other_channels_is_refused(x: Tensor) -> None:
    for clf in (wrap(small(), mean=(0.1, 0.2)), wrap(small(), std=(1.0, 1.0, 1.0, 1.0))):
        with pytest.raises(ModelError, match="one per channel"):
            clf.forward(x)


@pytest.mark.parametrize("std", [0.0, -1.0, (1.0, 0.0, 1.0)])
def test_std_must_be_positive(std: Any) -> None:
    with pytest.raises(ModelError, match="std above 0"):
        wrap(small(), std=std)


def test_one_logit_becomes_two(x: Tensor) -> None:
    z = torch.arange(6.0) - 2
    for answer in (z, z[:, None]):
        logits = wrap(Returns(lambda x, a=answer: a)).forward(x).logits
        assert torch.equal(logits, torch.stack([torch.zeros(6), z], 1))


def test_the_first_of_several_outputs_counts(x: Tensor) -> None:
    z = torch.rand(6, 4)
    assert torch.equal(wrap(Returns(lambda x: (z, "features"))).forward(x).logits, z)


def test_half_precision_logits_become_float32(x: Tensor) -> None:
    assert wrap(Returns(lambda x: torch.rand(6, 4).half())).forward(x).logits.dtype == torch.float32


@pytest.mark.parametrize(
    "answer",
    [lambda x: torch.rand(6, 4, 2), lambda x: torch.rand(5, 4), lambda x: {"logits": 1}, lambda x: torch.tensor(1.0)],
    ids=["three dimensions", "too few rows", "a dict", "a number"],
)
def test_other_outputs_are_refused(answer: Callable[[Tensor], Any], x: Tensor) -> None:
    with pytest.raises(ModelError, match=r"logits of shape \(6, classes\)"):
        wrap(Returns(answer)).forward(x)


def test_only_modules_are_wrapped() -> None:
    with pytest.raises(Exception, match="Module"):
        wrap(lambda x: x)  # type: ignore[arg-type]


class TestFingerprint:
    def test_same_weights_same_fingerprint(self) -> None:
        assert wrap(small()).fingerprint == wrap(small()).fingerprint

    def test_independent_of_name_and_device_object(self) -> None:
        clf = wrap(small(), name="a")
        assert clf.fingerprint == wrap(small(), name="b").fingerprint
        assert clf.fingerprint == clf.to(torch.device("cpu")).fingerprint

    def test_anything_that_decides_the_output_changes_it(self) -> None:
        base = wrap(small()).fingerprint
        net = small()
        with torch.no_grad():
            net[3].bias[0] += 1e-6
        buffer = small()
        buffer[1].running_mean[0] = 0.5
        others = [
            wrap(small(1)).fingerprint,
            wrap(net).fingerprint,
            wrap(buffer).fingerprint,
            wrap(small(), mean=0.1).fingerprint,
            wrap(small(), std=0.1).fingerprint,
            wrap(nn.Sequential(small(), nn.ReLU())).fingerprint,
        ]
        assert base not in others
        assert len(set(others)) == len(others)

    def test_tensors_of_every_kind(self) -> None:
        net = nn.Linear(2, 2)
        net.register_buffer("flag", torch.tensor(True))
        net.register_buffer("none", torch.zeros(0))
        net.register_buffer("coarse", torch.rand(3).to(torch.bfloat16))
        net.register_buffer("turned", torch.rand(3, 4).T)
        assert len(wrap(net).fingerprint) == 64


def test_modes_name_the_parts_in_train_mode() -> None:
    net = small()
    assert wrap(net).modes() == []
    net[1].train()
    assert wrap(net).modes() == [f"1 ({type(net[1]).__name__})"]


def test_names() -> None:
    assert wrap(small()).name == "Sequential"
    assert wrap(small(), name="mine").name == "mine"


def test_wrapping_changes_nothing(x: Tensor) -> None:
    net = demo_net().train()
    wrap(net)
    assert net.training


def test_a_copy_keeps_the_weights_of_products_in_another_kind_and_answers_like_autocast():
    class Own(nn.Linear):
        """A kind of its own, which may use its weights otherwise."""

    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5), Own(5, 4)).eval()
    clf = wrap(net)
    copied = clf.copy(torch.bfloat16)
    kinds = {k: v.dtype for k, v in copied.module.named_parameters()}
    coarse = {"0.conv.weight", "0.conv.bias", "3.weight", "3.bias"}
    assert {k for k, v in kinds.items() if v is torch.bfloat16} == coarse
    assert all(v.dtype is torch.float32 and v.requires_grad for v in net.parameters()), "the model itself stays"
    x = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(copied.forward(x).logits, clf.forward(x).logits)


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_with_padded_channels_answers_and_leads_like_autocast(shared: bool) -> None:
    """Zeros more or less: logits to the rounding of another kernel, and the way uphill is that of the model."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 3 if shared else 8, 3, padding=1)
    again = first if shared else nn.Conv2d(8, 3, 3, padding=1, groups=1)
    clf = wrap(nn.Sequential(first, nn.ReLU(), again, nn.Flatten(), nn.Linear(3 * 16, 4)).eval())
    copied = clf.copy(torch.bfloat16)
    x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    grads = []
    for c in (clf, copied):
        point = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            z = c.forward(point).logits
        grads.append((z.detach(), torch.autograd.grad(z[:, 0].float().sum(), point)[0]))
    for ours, plain in zip(*grads, strict=True):
        assert ours.shape == plain.shape
        torch.testing.assert_close(ours, plain, rtol=0.02, atol=0.02)
    assert first.in_channels == 3 and first.weight.dtype is torch.float32
