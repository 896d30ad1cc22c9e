"""The models of `benchmarks/trust.py`: broken defences, each with what breaks it, and sound networks.

`broken()` lists the gallery and defences of `trust_wrappers` around two networks of the demo data; `sound()` lists
networks whose gradients are what they seem. `Entry.build` returns a fresh model. The truth of a broken defence comes
from attacks on `surrogates`, the same function without the trick; each point is verified on the defence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import trust_wrappers as w
from torch import Tensor, nn
from torch.nn import functional as F

from brinell.core.dataset import Problem
from brinell.core.threat import L2, Linf, Threat
from brinell.defences.base_networks import HELD_OUT, batch_norm_network, held_out_images, plain_network
from brinell.defences.catalogue import DEFENCES
from brinell.models.demo import demo_net
from brinell.ops import rng

ROBUST, PLAIN = Linf(0.1), Linf(0.03)
CLASSES = 50
# Entries of the gallery with a detector: the plans for them are others.
DETECTORS = ("statistical-test", "leave-one-out", "trapdoor")


@dataclass(frozen=True)
class Entry:
    """A model with its threat and data.

    `surrogates` build the models whose adversarials give the truth, by name: equal names share one attack. `on_grid`
    rounds these adversarials to 8 bits. `randomised` models are judged by most of 20 passes, those that answer `alone`
    otherwise one by one. `smaller` attacks the surrogates within this share of the radius.
    """

    name: str
    threat: Threat
    build: Callable[[], Any]
    surrogates: tuple[tuple[str, Callable[[], Any]], ...] = ()
    data: Callable[[], Problem] = lambda: held_out_images(HELD_OUT)
    on_grid: bool = False
    randomised: bool = False
    alone: bool = False
    smaller: float = 1.0

    @property
    def broken(self) -> bool:
        return bool(self.surrogates)


def _frozen(net: nn.Module) -> nn.Module:
    return net.eval().requires_grad_(False)


# ---------------------------------------------------------------- broken

BASES: dict[str, tuple[Threat, Callable[[], Any]]] = {
    "robust": (ROBUST, demo_net),
    "plain": (PLAIN, plain_network),
    "plain at 0.1": (ROBUST, plain_network),
}


def _around(name: str, base: str, build: Callable[[Any], nn.Module], *more: tuple[str, Any], **options: Any) -> Entry:
    """A defence around a base network; `more` are further surrogates, functions of the base network."""
    threat, net = BASES[base]
    extra = tuple((f"{name}: {label}", lambda f=f: _frozen(f(net()))) for label, f in more)
    return Entry(name, threat, lambda: _frozen(build(net())), ((base, net), *extra), **options)


def _after(name: str, base: str, change: w.Map) -> Entry:
    return _around(name, base, lambda net: w.After(net, change))


def _before(name: str, base: str, change: w.Map, stand_in: w.Map | None = None) -> Entry:
    """A change of the input without a useful gradient; what breaks it uses the gradient of a stand-in."""
    known = ("bpda", lambda net: w.through(change, net, stand_in))
    return _around(name, base, lambda net: w.Before(w.Layer(change), net), known)


def _backward(name: str, base: str, change: w.Map) -> Entry:
    return _around(name, base, lambda net: w.Before(w.changed_gradient(change), net))


def _own() -> list[Entry]:
    other = plain_network
    winners = ("smooth", lambda net: _winners(net, smooth=True))
    unsharpened = ("unsharpened", lambda net: w.SubClasses(net, 4, 1))
    three = ("mean", lambda net: w.MeanLogits([net, *two()]))
    shaken = ("mean", lambda net: w.Shaken(net, False))

    def two() -> list[Any]:
        return [other(1), other(2)]

    return [
        _around("off the 8-bit grid", "plain at 0.1", lambda net: w.OffGrid(net, demo_net()), on_grid=True),
        _around("gradient right on the grid only", "plain", lambda net: w.Before(w.Layer(w.OnGridGradient.apply), net)),
        _after("reversed confidence", "robust", w.reversed_confidence),
        _after("reversed confidence, plain", "plain", w.reversed_confidence),
        _after("mirrored logits", "plain", w.mirrored),
        _around("sub-classes x30", "robust", lambda net: w.SubClasses(net, 4, 30), unsharpened),
        _around("sub-classes x100", "plain", lambda net: w.SubClasses(net, 4, 100), unsharpened),
        _after("reversed gradient, hard labels", "plain", w.reversed_gradient),
        _around("grad mode", "plain at 0.1", lambda net: w.GradMode(net, demo_net())),
        _around("hard labels, decoy gradient", "plain", lambda net: w.Decoy(net, other(7))),
        _around("right logits, decoy gradient", "plain", lambda net: w.Decoy(net, other(7), lambda z: z)),
        _after("coarse logits", "robust", w.coarse),
        _after("coarse logits, plain", "plain", w.coarse),
        _before("input levels", "plain", w.levels),
        _before("one-hot input", "plain", w.one_hot_input),
        _before("gamma outside autograd", "plain", w.numpy_gamma, lambda x: x.clamp(min=1e-3) ** 0.8),
        _before("median and levels", "plain", w.median_levels, w.median),
        _before("shattered input", "plain", w.shattered),
        _before("checkered gradient", "plain", w.checkered_gradient),
        _before("gradient on few pixels", "plain", w.few_pixels),
        _backward("zero backward", "plain", lambda g: 0 * g),
        _backward("negated backward", "robust", lambda g: -g),
        _backward("noisy backward", "plain", w.noise_instead),
        _backward("clipped backward", "robust", w.only_large),
        _backward("infinite backward", "plain", lambda g: g / 0),
        _after("saturated logits", "robust", w.saturated),
        _after("steep logits", "robust", w.powered),
        _after("floored logits", "plain", w.floored),
        _after("ranks of logits", "plain", w.ranks),
        _after("temperature 1e4", "robust", w.sharpened),
        _around("detached branch", "plain", lambda net: w.Detached(net, other(7))),
        _around("k winners, trained without", "plain", lambda net: _winners(net), winners),
        _around("vote of three", "plain", lambda net: w.Votes([net, *two()]), three),
        _around("vote of shaken copies", "plain", lambda net: w.Shaken(net, True), shaken),
        _around("batch mean", "plain", w.Mixing),
        _around("another answer every other call", "plain at 0.1", _alternating, randomised=True),
        _around("robust in batches", "plain at 0.1", lambda net: w.Crowd(net, demo_net()), alone=True),
        _around("plain near stored images", "plain at 0.1", _near_stored, smaller=0.3),
        _around("robust where rough", "plain at 0.1", lambda net: w.Rough(net, demo_net(), 0.9), smaller=0.3),
        _around("ten classes that never win", "plain", lambda net: w.Dummies(net, 10)),
        _around("a class that never wins", "plain", lambda net: w.Dummies(net, 1)),
        _around("reversed gradient for four classes", "plain", lambda net: w.OfClasses(net, 4)),
        _around("reversed gradient for one class", "plain at 0.1", lambda net: w.OfClasses(net, 1)),
        _around("noise by the low bits", "plain", lambda net: w.LowBits(net, 0.05)),
        _around("small noise by the low bits", "plain", lambda net: w.LowBits(net, 0.005)),
        _around("temperature off the grid", "plain", lambda net: w.Warm(net, 1e3)),
        _around("twice as warm off the grid", "plain", lambda net: w.Warm(net, 1.0)),
        _after("reversed gradient near the boundary", "plain", w.reversed_nearby),
        _after("reversed gradient near the boundary, robust", "robust", w.reversed_nearby),
        _after("valley before the boundary", "plain", w.valley),
        _after("valley before the boundary, robust", "robust", w.valley),
        _after("flat before the boundary", "plain", w.flat_nearby),
        _after("logits plus 3e6", "plain", w.offset),
        _around("random noise", "plain", lambda net: w.Before(w.RandomNoise(0.1), net), randomised=True),
        _around("random resizing", "plain", lambda net: w.Before(w.RandomShift(), net), randomised=True),
    ]  # fmt: skip


def _near_stored(net: Any) -> nn.Module:
    return w.NearStored(net, demo_net(), held_out_images(HELD_OUT).x, 0.04)


def _alternating(net: Any) -> nn.Module:
    return w.Alternating(net, demo_net())


def _winners(net: Any, smooth: bool = False) -> nn.Module:
    from brinell.defences.layers import Averaged, Noise, Winners

    sparse = nn.Sequential(*(Winners(0.1) if isinstance(layer, nn.ReLU) else layer for layer in net.layers))
    return w.bpda(sparse, Averaged(sparse, Noise(0.01), 8)) if smooth else sparse


def _gallery() -> list[Entry]:
    return [
        Entry(
            f"gallery: {d.name}",
            d.threat,
            d.original.build,
            ((f"gallery: {d.name}", d.stronger.build),),
            randomised=d.name == "noise",
        )
        for d in DEFENCES
        if d.name not in DETECTORS
    ]


@cache
def broken() -> list[Entry]:
    return [*_own(), *_gallery()]


# ---------------------------------------------------------------- sound


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x).relu())


def _mlp(activation: nn.Module, width: int = 64, classes: int = 10, size: int = 784) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), activation, nn.Linear(width, classes))


def _conv(activation: nn.Module, *, pool: bool = False, residual: bool = False) -> nn.Module:
    first = [nn.Conv2d(1, 8, 4, 2, 1), activation]
    middle = [Residual(8), activation] if residual else []
    last = [nn.MaxPool2d(2)] if pool else [nn.Conv2d(8, 16, 4, 2, 1), activation]
    return nn.Sequential(*first, *middle, *last, nn.Flatten(), nn.Linear((8 if pool else 16) * 49, 10))


class Scaled(nn.Module):
    def __init__(self, base: nn.Module, factor: float) -> None:
        super().__init__()
        self.base, self.factor = base, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.base(x)


def _pixels(classes: int, train: bool) -> tuple[Tensor, Tensor]:
    """Images of many classes: a smooth pattern each, with noise."""
    patterns = F.interpolate(rng.uniform(rng.keys(21, torch.arange(classes)), (1, 5, 5)), 16, mode="bicubic")
    n, seed = (4000, 22) if train else (HELD_OUT, 23)
    keys = rng.keys(seed, torch.arange(n))
    y = rng.integers(keys, classes)
    x = (patterns[y] + 0.1 * rng.normal(keys, (1, 16, 16))).clamp(0, 1)
    return (x * 255).round() / 255, y


def _training(classes: int) -> tuple[Tensor, Tensor]:
    from brinell.defences.base_networks import training_data

    if classes == CLASSES:
        return _pixels(classes, True)
    x, y = training_data()
    return x[y < classes], y[y < classes]


def _data(classes: int) -> Problem:
    if classes == CLASSES:
        return Problem(*_pixels(classes, False), name="patterns")
    whole = held_out_images(HELD_OUT)
    keep = whole.y < classes
    return Problem(whole.x[keep], whole.y[keep], ids=whole.ids[keep], name="demo")


def _attacked(net: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], eps: float, keys: Tensor) -> Tensor:
    z = (x + eps * (2 * rng.uniform(keys, tuple(x.shape[1:])) - 1)).clamp(0, 1)
    for _ in range(5):
        z = z.detach().requires_grad_(True)
        (up,) = torch.autograd.grad(loss(net(z)), z)
        z = torch.clamp(z.detach() + 0.4 * eps * up.sign(), x - eps, x + eps).clamp(0, 1)
    return z.detach()


def train(net: nn.Module, method: str, eps: float, classes: int, epochs: int) -> nn.Module:
    """Train with Adam: `plain`, `adversarial` (Madry et al. 2018) or `trades` (Zhang et al. 2019, beta 6)."""
    x, y = _training(classes)
    for i, (name, p) in enumerate(net.named_parameters()):
        if p.ndim > 1:
            p.data = rng.normal(rng.keys(30, torch.tensor([i])), tuple(p.shape))[0] * (2 / p[0].numel()) ** 0.5
        elif name.endswith("bias"):
            p.data.zero_()
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(epochs):
        order = rng.bits(rng.keys(31, torch.tensor([epoch])), len(x))[0].argsort()
        for at in order.split(50):
            a, b, keys = x[at], y[at], rng.keys(32 + epoch, at)
            net.eval()
            if method == "adversarial":
                a = _attacked(net, a, lambda z, b=b: F.cross_entropy(z, b, reduction="sum"), eps, keys)
            clean = net(a).detach().softmax(1)
            if method == "trades":
                far = _attacked(net, a, lambda z, p=clean: F.kl_div(z.log_softmax(1), p, reduction="sum"), eps, keys)
            net.train()
            loss = F.cross_entropy(z := net(a), b)
            if method == "trades":
                loss = loss + 6 * F.kl_div(net(far).log_softmax(1), z.softmax(1), reduction="batchmean")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return _frozen(net)


Recipe = tuple[Callable[[], nn.Module], str, float, int, int, Threat]
# Network, method, radius of training, classes, epochs, threat.
RECIPES: dict[str, Recipe] = {
    "perceptron": (lambda: _mlp(nn.ReLU()), "plain", 0, 10, 15, Linf(0.02)),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), "plain", 0, 10, 15, Linf(0.02)),
    "conv, ReLU": (lambda: _conv(nn.ReLU()), "plain", 0, 10, 15, Linf(0.03)),
    "conv, GELU": (lambda: _conv(nn.GELU()), "plain", 0, 10, 15, Linf(0.03)),
    "tanh": (lambda: _mlp(nn.Tanh()), "plain", 0, 10, 15, Linf(0.02)),
    "sigmoid": (lambda: _mlp(nn.Sigmoid()), "plain", 0, 10, 25, Linf(0.02)),
    "softplus": (lambda: _conv(nn.Softplus()), "plain", 0, 10, 25, Linf(0.03)),
    "max-pool": (lambda: _conv(nn.ReLU(), pool=True), "plain", 0, 10, 15, Linf(0.03)),
    "residual": (lambda: _conv(nn.ReLU(), residual=True), "plain", 0, 10, 15, Linf(0.03)),
    "adversarially trained": (lambda: _conv(nn.ReLU()), "adversarial", 0.1, 10, 25, Linf(0.1)),
    "adversarially trained perceptron": (lambda: _mlp(nn.ReLU()), "adversarial", 0.05, 10, 25, Linf(0.05)),
    "TRADES": (lambda: _conv(nn.ReLU()), "trades", 0.1, 10, 25, Linf(0.1)),
    "2 classes": (lambda: _mlp(nn.ReLU(), 32, 2), "plain", 0, 2, 15, Linf(0.05)),
    "3 classes": (lambda: _mlp(nn.ReLU(), 32, 3), "plain", 0, 3, 15, Linf(0.05)),
    "50 classes": (lambda: _mlp(nn.ReLU(), 128, CLASSES, 256), "plain", 0, CLASSES, 4, Linf(0.06)),
    "L2": (lambda: _conv(nn.ReLU()), "plain", 0, 10, 15, L2(0.4)),
}


def _trained(name: str, cache_folder: Path) -> nn.Module:
    make, method, eps, classes, epochs, _ = RECIPES[name]
    file = cache_folder / f"{name.replace(' ', '-').replace(',', '')}.pt"
    net = make()
    if file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return _frozen(net)
    file.parent.mkdir(parents=True, exist_ok=True)
    train(net, method, eps, classes, epochs)
    torch.save(net.state_dict(), file)
    return net


def sound(cache_folder: Path) -> list[Entry]:
    """The sound networks; those that are trained here are kept in `cache_folder`."""
    trained = [
        Entry(name, r[5], lambda name=name: _trained(name, cache_folder), data=lambda r=r: _data(r[3]))
        for name, r in RECIPES.items()
    ]
    return [
        *trained,
        Entry("demo", ROBUST, demo_net),
        Entry("plain", PLAIN, plain_network),
        Entry("batch normalisation", PLAIN, batch_norm_network),
        Entry("large logits", PLAIN, lambda: _frozen(Scaled(plain_network(), 5.0))),
    ]
