"""Networks that try to get a false certificate: each is refused by name, or bounded as float32 computes it."""

from collections.abc import Callable

import pytest
import torch
from tests.certification.test_bounds import draw, randomised
from torch import Tensor, nn
from torch.nn import functional as F

import brinell
from brinell.certification import Bounds
from brinell.certification.activations import Smooth, gelu, sigmoid, silu, tanh
from brinell.core.threat import Threat
from brinell.errors import InputError, ModelError
from brinell.ops.defaults import standard_defaults

SHAPE = (1, 4, 4)


class Written(nn.Module):
    """A network whose forward pass is a function of the module and the input."""

    @standard_defaults()
    def __init__(self, function: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.relu = function, nn.ReLU(inplace=True)
        self.a, self.b, self.conv = nn.Linear(16, 8), nn.Linear(8, 3), nn.Conv2d(1, 2, 3, padding=1)
        randomised(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)

    def hidden(self, x: Tensor) -> Tensor:
        return self.a(x.flatten(1))


def read_again(net: Written, x: Tensor) -> Tensor:
    h = net.hidden(x)
    y = F.relu(h, inplace=True)
    return net.b(h + y)


def read_through_a_view(net: Written, x: Tensor) -> Tensor:
    h = net.hidden(x)
    net.relu(h.view(h.size(0), 2, 4))
    return net.b(h)


def added_in_place(net: Written, x: Tensor) -> Tensor:
    h = before = net.hidden(x)
    h += F.relu(before)
    return net.b(h + before)


REFUSED = {
    "a value that is read again later": [read_again, read_through_a_view, added_in_place],
    "drops values at random": [lambda net, x: net.b(F.dropout(net.hidden(x), 0.5))],
    "mixes the samples": [lambda net, x: net.b(net.hidden(x) - net.hidden(x).mean(0, keepdim=True))],
    "draws random numbers": [lambda net, x: net.b(net.hidden(x)) + torch.rand(3)],
    "these options have no bounds": [lambda net, x: net.b(torch.div(net.hidden(x), 0.1, rounding_mode="floor"))],
    "the call of half": [lambda net, x: net.b(net.hidden(x).half().float())],
    "or the precision": [lambda net, x: net.b(net.hidden(x)).view(-1, 3, 1).mean(2, dtype=torch.float16)],
    "ceil_mode": [lambda net, x: net.b(F.max_pool2d(net.conv(x), 3, 2, ceil_mode=True).flatten(1))],
    "the product of two values": [lambda net, x: net.b(net.hidden(x) * net.hidden(x))],
    "torch.fx cannot trace it": [lambda net, x: net.b(net.hidden(x) if x.sum() > 0 else -net.hidden(x))],
}


def certified(net: nn.Module, x: Tensor, threat: Threat | None = None) -> list[bool]:
    y = net(x.clone()).argmax(1)
    given = Bounds(net, seconds=2).certify(x, y, threat or brinell.Linf(1e-4))
    return [c.certified for c in given]


@pytest.mark.parametrize("message", REFUSED)
def test_what_bounds_cannot_describe_is_refused_by_name(message: str) -> None:
    for function in REFUSED[message]:
        with pytest.raises(ModelError, match=message):
            Bounds(Written(function)).certify(draw(0, 2, *SHAPE), torch.zeros(2, dtype=torch.long), brinell.Linf(0.1))


def plain(*middle: nn.Module) -> nn.Module:
    with standard_defaults():
        return randomised(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *(middle or (nn.ReLU(),)), nn.Linear(8, 3)))


def test_modules_that_are_not_what_their_type_says_are_refused() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    handle = net[1].register_forward_hook(lambda module, given, out: -out)
    with pytest.raises(ModelError, match="forward hook"):
        certified(net, x)
    handle.remove()
    net[1].forward = lambda v: v[:, :8]
    with pytest.raises(ModelError, match="forward was replaced"):
        certified(net, x)
    del net[1].forward
    net[2].train()
    with pytest.raises(ModelError, match="train mode"):
        certified(net, x)


def test_logits_that_are_not_those_of_the_traced_network_are_refused() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    bounds = Bounds(net)
    assert bounds.certify(x, net(x).argmax(1), brinell.Linf(1e-4))[0].certified
    with torch.no_grad():
        net[1].bias += 1e-3  # after it was traced
    with pytest.raises(ModelError, match="the logits of the traced network"):
        bounds.certify(x, net(x).argmax(1), brinell.Linf(1e-4))


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_prove_nothing(layer: int, weight: float) -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    with torch.no_grad():
        net[layer].weight[0, 0] = weight
    assert certified(net, x) == [False, False]


def test_what_overflows_in_float32_proves_nothing() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    with torch.no_grad():
        net[1].weight *= 1e25
        net[3].weight *= 1e25
    given = Bounds(net, seconds=1).certify(x, net.double()(x.double()).argmax(1), brinell.Linf(1e-6))
    assert not any(c.certified for c in given)


def test_subnormal_numbers_prove_nothing() -> None:
    """Margins of about 1e-40, which a device may flush to zero."""
    net, x = plain(), draw(0, 2, *SHAPE)
    with torch.no_grad():
        for layer in (net[1], net[3]):
            layer.weight *= 1e-20
            layer.bias.zero_()
    assert certified(net, x) == [False, False]


def test_a_network_of_biases_is_certified_everywhere() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    with torch.no_grad():
        net[3].weight.zero_()
    for threat in (brinell.Linf(1.0), brinell.L2(4.0), brinell.L1(16.0)):
        assert certified(net, x, threat) == [True, True]
    with torch.no_grad():
        net[3].bias.fill_(1.0)  # a tie
    assert certified(net, x) == [False, False]


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_a_radius_of_zero_certifies_what_rounding_does_not_decide(norm: str) -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    assert certified(net, x, Threat(brinell.core.threat.threat(norm, 1.0).norm, 0.0)) == [True, True]


def test_inputs_without_a_meaning_are_refused() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    bounds, y = Bounds(net), net(x).argmax(1)
    for bad in (x + 1, x * float("nan")):
        with pytest.raises(InputError, match="samples in"):
            bounds.certify(bad, y, brinell.Linf(0.1))
    for labels in (y + 3, y[:1]):
        with pytest.raises(InputError, match="one class from 0 to 2"):
            bounds.certify(x, labels, brinell.Linf(0.1))
    with pytest.raises(InputError, match="a threat with a radius"):
        bounds.certify(x, y, brinell.L2())
    assert bounds.certify(x[:0], y[:0], brinell.Linf(0.1)) == []


def averaged(net: Written, x: Tensor, *options: object) -> Tensor:
    return net.b(F.avg_pool2d(net.conv(x).relu(), *options)[:, :, :2, :2].flatten(1))


SOUND = {
    "divided by a negative number": lambda net, x: averaged(net, x, 2, 2, 0, False, True, -3),
    "averages over padding": lambda net, x: averaged(net, x, 3, 2, 1, True, True),
    "averages without padding": lambda net, x: averaged(net, x, 3, 2, 1, True, False),
    "used three times": lambda net, x: net.b(net.relu(net.relu(net.hidden(x)) - 0.1)),
    "dropout in evaluation mode": lambda net, x: net.b(F.dropout(net.hidden(x), 0.5, net.training)),
}


@pytest.mark.parametrize("name", SOUND)
def test_unusual_networks_are_bounded_as_they_compute(name: str) -> None:
    net, x = Written(SOUND[name]), draw(0, 2, *SHAPE)
    y = net(x.clone()).argmax(1)
    given = Bounds(net, methods=("crown", "branch-and-bound"), seconds=2).certify(x, y, brinell.Linf(0.02))
    points = (x[:, None] + 0.02 * (2 * draw(1, 2, 400, *SHAPE) - 1).sign()).clamp(0, 1)
    for c, label, some in zip(given, y, points, strict=True):
        logits = net(some)
        margin = logits[:, label] - logits.scatter(1, label.expand(400, 1), -torch.inf).amax(1)
        assert c.margin <= margin.min()
    assert any(c.margin > 0 or c.counterexample is not None for c in given)


def test_weights_with_a_parametrisation_are_their_values() -> None:
    net, x = plain(), draw(0, 2, *SHAPE)
    nn.utils.parametrizations.spectral_norm(net[1])
    assert certified(net.eval(), x) == [True, True]


@pytest.mark.parametrize("function", [tanh(), sigmoid(), silu(), gelu(), gelu("tanh")])
def test_no_second_derivative_exceeds_its_bound(function: Smooth) -> None:
    x = torch.linspace(-12, 12, 48_001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function.function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first, function.derivative(x), rtol=0, atol=1e-9)
    assert 0.98 * function.curvature < second.abs().max() <= function.curvature
