"""What the last layer sees, found by itself or named; or the outputs of a model that does not end in such a layer."""

import pytest
import torch
from torch import nn

from brinell.errors import ModelError, PlanError
from brinell.models.demo import DemoNet
from brinell.models.networks import PreActResNet18, ResNet18
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.reliability.binarization.features import find_features, find_readout_layer


def inputs(*shape: int) -> torch.Tensor:
    return rng.uniform(rng.keys(0, torch.arange(shape[0])), shape[1:])


class Small(nn.Module):
    """Three features of six inputs, a readout, and something after it."""

    def __init__(self, after=lambda z: z, classes: int = 4) -> None:
        super().__init__()
        self.body, self.head, self.after = nn.Sequential(nn.Linear(6, 3), nn.Tanh()), nn.Linear(3, classes), after
        for k, weight in enumerate(self.parameters()):
            weight.data = rng.normal(rng.keys(k, torch.arange(1)), tuple(weight.shape))[0]

    def forward(self, x):
        return self.after(self.head(self.body(x)))


AFTER = {
    "nothing": lambda z: z,
    "large logits": lambda z: 1000 * z,
    "log-softmax": lambda z: z.log_softmax(1),
    "tuple": lambda z: (z, z.sum()),
}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_the_input_of_the_last_linear_layer(after):
    net, x = Small(after).eval(), inputs(5, 6)
    assert find_readout_layer(wrap(net), x) == "head"
    found = find_features(wrap(net, mean=0.5, std=0.2), x)
    assert torch.equal(found.of(x), net.body((x - 0.5) / 0.2)) and found.source == "head"
    assert torch.equal(found.forward(x).logits[:, 3:], wrap(net, mean=0.5, std=0.2).forward(x).logits)


@pytest.mark.parametrize(
    "after",
    [
        lambda z: z,
        lambda z: -z,
        lambda z: torch.cat([z, -z], 1),
        lambda z: nn.functional.logsigmoid(torch.cat([-z, z], 1)),
        lambda z: z.mul_(2),
    ],
)
@pytest.mark.parametrize("n", [5, 1])
def test_one_output(after, n):
    net, x = Small(after, classes=1).eval(), inputs(n, 6)
    assert torch.equal(find_features(wrap(net), x).of(x), net.body(x))


def test_a_head_that_has_learned_nothing_yet():
    net, x = Small().eval(), inputs(5, 6)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    assert find_readout_layer(wrap(net), x) == "head"


class Sloped(Small):
    """Logits that take a gradient of their own on the way."""

    def forward(self, x):
        with torch.enable_grad():
            point = self.body(x).detach().requires_grad_()
            z = self.head(point)
            slope = torch.autograd.grad(z.logsumexp(1).sum(), point)[0]
        return z.detach() / (1 + slope.norm(dim=1, keepdim=True))


class Writing(Small):
    """Overwrites the features once they have been read."""

    def forward(self, x):
        f = self.body(x)
        z = self.head(f)
        f.zero_()
        return z


POSITIVE = {
    "shares": lambda z: z / z.sum(1, keepdim=True),
    "logarithms of shares": lambda z: torch.distributions.Categorical(probs=z, validate_args=True).logits,
    "squares": lambda z: z.square(),
    "of the largest": lambda z: z / z.amax(1, keepdim=True),
}


@pytest.mark.parametrize("after", POSITIVE.values(), ids=POSITIVE)
def test_outputs_that_must_be_positive_stay_so(after):
    x = inputs(5, 6)
    assert bool((Small()(x) > 0).all())
    assert find_readout_layer(wrap(Small(after).eval()), x) == "head"


def hard(z):
    return nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z)


KEPT = {
    **POSITIVE,
    "softmax": lambda z: (50 * z).softmax(1),
    "a temperature of its own": lambda z: z / z.detach().std(1, keepdim=True),
    "reversed gradients": lambda z: z.detach() - (z - z.detach()),
    "hard labels": lambda z: hard(z) + (z - z.detach()),
    "coarse": lambda z: hard(z) + 1e-6 * z,
}


@pytest.mark.parametrize("after", KEPT.values(), ids=KEPT)
def test_what_a_model_does_to_its_logits_stays_in_the_test(after):
    """The order of the logits is that of the last linear layer, but the attack meets other values or gradients."""
    net, x = Small(after).eval(), inputs(5, 6)
    assert find_readout_layer(wrap(net), x) == "head"
    found = find_features(wrap(net), x)
    assert torch.equal(found.of(x), net(x)) and found.source == "the outputs of the model"


def test_networks_that_take_gradients_or_write_on_the_way():
    x, sloped, writing = inputs(5, 6), Sloped().eval(), Writing().eval()
    assert torch.equal(find_features(wrap(sloped), x).of(x), sloped(x))
    assert torch.equal(find_features(wrap(writing), x).of(x), writing.body(x))


@pytest.mark.parametrize(
    ("net", "shape", "name"),
    [
        (DemoNet, (2, 1, 28, 28), "layers.7"),
        (ResNet18, (2, 3, 32, 32), "linear"),
        (PreActResNet18, (2, 3, 32, 32), "linear"),
    ],
)
def test_networks_of_the_library(net, shape, name):
    module, x = net().eval(), inputs(*shape)
    found = find_readout_layer(wrap(module), x)
    layer = dict(module.named_modules())[found]
    with torch.no_grad():
        assert torch.allclose(layer(find_features(wrap(module), x).of(x)), module(x), atol=1e-5)


def test_the_gradient_goes_through():
    net, x = Small().eval(), inputs(4, 6).requires_grad_()
    found = find_features(wrap(net), x.detach())
    got = torch.autograd.grad(found.of(x).sum(), x)[0]
    assert torch.equal(got, torch.autograd.grad(net.body(x).sum(), x)[0]) and float(got.abs().sum()) > 0
    assert len(net.head._forward_hooks) == 0


def test_a_lone_linear_layer_sees_the_input():
    net, x = nn.Linear(6, 3).eval(), inputs(4, 6)
    assert torch.equal(find_features(wrap(net), x).of(x), x)


def test_several_layers_and_functions():
    net, x = Small().eval(), inputs(4, 6)
    both = find_features(wrap(net), x, ["body.0", "head"])
    assert torch.equal(both.of(x), torch.cat([x, net.body(x)], 1)) and both.widths(x) == [6, 3]
    own = find_features(wrap(net), x, lambda v: v.view(len(v), 2, 3) + 1)
    assert torch.equal(own.of(x), x + 1) and own.source == "a function of the input"
    assert torch.equal(own.forward(x).logits, torch.cat([x + 1, net(x)], 1))


class Twice(Small):
    def forward(self, x):
        return self.head(self.body(x)) + self.head(self.body(1 - x))


class Square(Small):
    def forward(self, x):
        return -self.head(self.body(x)).square()


class Beside(Small):
    """Logits of a convolution, and an uncertainty of a linear layer that runs last and is not among them."""

    def __init__(self) -> None:
        super().__init__(classes=1)
        self.conv = nn.Conv1d(1, 1, 6)

    def forward(self, x):
        z = self.conv(x[:, None])[:, 0]
        self.head(self.body(x))
        return torch.cat([z, torch.zeros_like(z)], 1)


class Halves(Small):
    """The mean of what the readout says of a point and of its mirror image, asked in one go."""

    def forward(self, x):
        return super().forward(torch.cat([x, 1 - x])).unflatten(0, (2, len(x))).mean(0)


ORDER = torch.tensor([1.0, 0.0, 3.0, 2.0])
"""That of Small's four outputs at all of the points below: logits of this order agree with it by chance."""


@pytest.mark.parametrize("seed", range(20))
def test_orders_that_agree_by_chance_do_not_deceive(seed):
    torch.manual_seed(seed)
    net, x = nn.Sequential(Small(), nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten()).eval(), inputs(4, 6)
    assert torch.equal(Small()(x).argsort(1), ORDER.argsort().expand(4, 4))
    with pytest.raises(ModelError, match=r"0\.head"):
        find_readout_layer(wrap(net), x)


ELSEWHERE = [
    (nn.Sequential(nn.Flatten(), nn.Softplus()), "no linear layer runs"),
    (Square(), "logits in another order.*layer='head'"),
    (nn.Sequential(Small(), nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten()), "0.head"),
    (Small(lambda z: z.sum(1, keepdim=True) + ORDER), "logits in another order"),
    (Small(lambda z: z.square_().neg_()), "logits in another order"),
    (Small(lambda z: z.copy_(ORDER)), "logits in another order"),
    (Small(lambda z: z.zero_()), "logits in another order"),
    (Small(lambda z: (50 * z).sin(), classes=1), "logits in another order"),
    (Beside(), "logits in another order"),
    (Halves(), "logits in another order"),
]


@pytest.mark.parametrize(("net", "text"), ELSEWHERE)
def test_a_network_that_ends_in_something_else_is_tested_on_its_outputs(net, text):
    x = inputs(4, 6)
    with pytest.raises(ModelError, match=text):
        find_readout_layer(wrap(net.eval()), x)
    found = find_features(wrap(net.eval()), x)
    assert torch.equal(found.of(x), wrap(net).forward(x).logits) and found.source == "the outputs of the model"


@pytest.mark.parametrize(
    ("net", "layer", "error", "text"),
    [
        (Twice(), "head", ModelError, "runs 2 times"),
        (Small(), "heat", PlanError, "Did you mean 'head'"),
        (Small(), lambda x: x.mean(), ModelError, "one row of finite features"),
        (Small(), lambda x: x / 0, ModelError, "with NaN or inf"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy(net, layer, error, text):
    x = inputs(4, 6)
    with pytest.raises(error, match=text):
        find_features(wrap(net.eval()), x, layer)


def test_a_classifier_without_a_module_gives_its_outputs():
    x = inputs(4, 6)
    bare = find_features(wrap(Small().eval()), x)
    assert torch.equal(find_features(bare, x).of(x), bare.forward(x).logits)
    with pytest.raises(ModelError, match="layer=lambda"):
        find_features(bare, x, "head")
    assert torch.equal(find_features(bare, x, lambda v: 2 * v).of(x), 2 * x)


def test_a_layer_that_does_not_run_for_a_batch_of_one_is_an_error_that_names_it():
    class Switch(Small):
        def forward(self, x):
            return super().forward(x) if len(x) > 1 else self.body(x)[:, [0, 1, 2, 0]]

    found = find_features(wrap(Switch().eval()), inputs(5, 6))
    with pytest.raises(ModelError, match="head, which does not run for a batch of 1"):
        found.widths(inputs(1, 6))
