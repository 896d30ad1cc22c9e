"""Models as people have them: outputs with logits, other precisions, functions and bound methods."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.core.attack import Requires
from brinell.engine.oracle import Oracle
from brinell.errors import ModelError
from brinell.evaluation.coerce import as_classifier
from brinell.models.demo import demo_net
from brinell.models.functions import FunctionModule
from brinell.ops import rng

DATA = brinell.data.load("demo", 16)
X, Y = DATA
NET = demo_net()
COLUMNS = ["sample_id", "attack", "broken", "adv_margin", "distance"]


class Returns(nn.Module):
    """The demo net with its output in a container."""

    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.pack = demo_net(), pack
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.pack(self.net(x))


def linear(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> nn.Module:
    """A network of one layer whose weights every dtype represents exactly."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    with torch.no_grad():
        net[1].weight.copy_(scale * rng.integers(rng.keys(1, torch.arange(10)), 9, (784,)).sub(4) / 16)
        net[1].bias.zero_()
    return net.to(dtype)


def rows(model: Any, plan: Any = "pgd20", eps: float = 0.05) -> Any:
    return brinell.attack(model, DATA, brinell.Linf(eps), brinell.attacks.PGD(steps=3)).select(COLUMNS)


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "attribute": lambda z: SimpleNamespace(logits=z, hidden_states=None),
    "dict": lambda z: {"logits": z},
    "ordered dict, as in transformers": lambda z: OrderedDict(loss=None, logits=z),
    "tuple": lambda z: (z, None),
    "one column": lambda z: z,
}


@pytest.mark.parametrize("pack", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_logits_are_found_in_every_output(pack: Any) -> None:
    assert torch.equal(as_classifier(Returns(pack)).forward(X).logits, NET(X))


class Seen(nn.Module):
    """Records the dtypes of its inputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.seen = net, set[torch.dtype]()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(x.dtype)
        return self.net(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_called_as_they_are(dtype: torch.dtype) -> None:
    model = Seen(linear(dtype))
    classifier = as_classifier(model)
    logits = classifier.forward(X).logits
    assert torch.equal(logits.to(dtype), model.net(X.to(dtype)))
    model.seen.clear()
    table = brinell.attack(classifier, DATA, brinell.Linf(0.1), brinell.attacks.FGSM())
    assert model.seen == {dtype} and next(model.parameters()).dtype == dtype
    assert any(table["verified"].to_pylist())


def test_a_module_that_takes_float32_is_given_float32() -> None:
    """Weights in half precision behind a cast of its own: its inputs are not rounded before."""
    inner = linear(torch.bfloat16)
    model = Seen(nn.Sequential(Cast(torch.bfloat16), inner))
    classifier = as_classifier(model.eval())
    classifier.forward(X)
    assert torch.float32 in model.seen and torch.equal(classifier.forward(X).logits, inner(X.bfloat16()).float())
    model.seen.clear()
    classifier.forward(X)
    assert model.seen == {torch.float32}


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class Close(nn.Module):
    """Two logits that only double precision tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        level = 1 + 0 * x.flatten(1).sum(1) * self.weight
        return torch.stack([level, level + 1e-12, 0 * level], 1)


def test_double_precision_decides_what_float32_cannot() -> None:
    assert as_classifier(Close()).forward(X).logits.argmax(1).unique().tolist() == [1]
    run = brinell.evaluate(Close(), (X, 0 * Y + 1), brinell.Linf(0.1), "square", progress=False, test=False)
    assert run.clean_accuracy.k == len(X)


def test_gradients_of_half_precision_do_not_vanish() -> None:
    """Where the cross entropy is sure, the gradient at the logits is below the smallest number of half precision."""
    exact = linear(scale=8.0)
    logits = exact(X).detach()
    labels, top = logits.argmax(1), logits.topk(2).values
    assert float(torch.exp(top[:, 1] - top[:, 0]).min()) < 2**-24
    grads = []
    for net in (exact, linear(torch.float16, scale=8.0)):
        oracle = Oracle(as_classifier(net), 32)
        grad = oracle.query(X, labels, labels - labels - 1, "ce", Requires.GRAD).grad
        assert grad is not None
        grads.append(grad)
    sizes = [g.flatten(1).norm(dim=1) for g in grads]
    assert bool((sizes[1] > 0).all())
    units = [g.flatten(1) / size[:, None] for g, size in zip(grads, sizes, strict=True)]
    assert float((units[0] * units[1]).sum(1).min()) > 0.99 and torch.allclose(sizes[0], sizes[1], rtol=0.05)


def through(x: Tensor) -> Tensor:
    return NET(x)


class Service:
    def __init__(self) -> None:
        self.net = demo_net()

    def scores(self, x: Tensor) -> Tensor:
        return self.net(x)

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)


FUNCTIONS = {
    "function": through,
    "lambda": lambda x: NET(x),
    "bound method of a module": demo_net().forward,
    "bound method": Service().scores,
    "callable object": Service(),
    "partial": functools.partial(lambda net, x: net(x), demo_net()),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_are_models_with_gradients(function: Any) -> None:
    classifier = as_classifier(function, data=DATA)
    assert classifier.differentiable and torch.equal(classifier.forward(X).logits, NET(X))
    assert len(list(FunctionModule(function).parameters())) == len([*NET.parameters()])


def test_the_rows_of_a_function_are_those_of_its_module() -> None:
    assert rows(through) == rows(demo_net())


def test_the_fingerprint_of_a_function_has_its_weights_and_its_code() -> None:
    def made(net: nn.Module, shift: float = 0.0) -> Any:
        return lambda x: net(x) + shift

    other = copy.deepcopy(NET)
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    prints = [as_classifier(f).fingerprint for f in (made(NET), made(demo_net()), made(other), lambda x: NET(x) * 2)]
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_the_net_inside_a_function_is_checked() -> None:
    net = demo_net().train()
    with pytest.raises(ModelError, match="evaluation mode"):
        brinell.evaluate(lambda x: net(x), DATA, brinell.Linf(0.1), "fgsm", progress=False)


def softmax(x: Any) -> Any:
    return NET(torch.as_tensor(x)).softmax(1).detach().double().numpy()


def test_functions_of_arrays_are_black_boxes() -> None:
    def plain(x: Any) -> Any:
        assert isinstance(x, np.ndarray) and x.dtype == np.float32
        return NET(torch.from_numpy(x)).detach().numpy()

    assert torch.equal(as_classifier(plain, data=DATA).forward(X).logits, NET(X))
    for function in (plain, softmax):
        classifier = as_classifier(function, data=DATA)
        assert not classifier.differentiable
        with pytest.raises(ModelError, match="gradients"):
            brinell.attack(function, DATA, brinell.Linf(0.1), brinell.attacks.FGSM())
    assert torch.allclose(as_classifier(softmax).forward(X).logits, NET(X).log_softmax(1), atol=1e-4)
    run = brinell.evaluate(plain, DATA[:4], brinell.Linf(0.2), "square", queries=20, progress=False, test=False)
    assert run.clean_accuracy.n == 4


@pytest.mark.parametrize(
    ("function", "words"),
    [(lambda x: np.asarray(x).argmax(-1)[:, 0, 0], "outputs='labels'"), (lambda x: x.nowhere, "one row of logits")],
)
def test_functions_that_are_no_models(function: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        as_classifier(function, data=DATA)
