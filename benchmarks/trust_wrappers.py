"""Wrappers that make an evaluation go wrong: each hides the weakness of the network `base` without removing it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brinell.models.bpda import bpda
from brinell.ops import rng

LEVELS = 255
Map = Callable[[Tensor], Tensor]


class Before(nn.Module):
    """`change` acts on the input of the base network."""

    def __init__(self, change: nn.Module, base: nn.Module) -> None:
        super().__init__()
        self.change, self.base = change, base

    def forward(self, x: Tensor) -> Tensor:
        return self.base(self.change(x))


class After(nn.Module):
    """`change` acts on the logits of the base network."""

    def __init__(self, base: nn.Module, change: Map) -> None:
        super().__init__()
        self.base, self.change = base, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.base(x))


class Layer(nn.Module):
    def __init__(self, function: Map) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def hard(z: Tensor) -> Tensor:
    return F.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)


def with_gradient(value: Tensor, of: Tensor) -> Tensor:
    """The value of `value` with the gradient of `of`."""
    return value.detach() + (of - of.detach())


# ---------------------------------------------------------------- logits


def coarse(z: Tensor) -> Tensor:
    return hard(z) + 1e-6 * z


def reversed_confidence(z: Tensor) -> Tensor:
    """The same class, with a margin that grows as the true margin falls."""
    top = z.topk(2, 1).values
    return hard(z) / (0.05 + (top[:, :1] - top[:, 1:])) - 0.01 * z.softmax(1)


def mirrored(z: Tensor) -> Tensor:
    """The same class; the other logits in reverse order, further below the top the closer they are."""
    top = z.amax(1, keepdim=True)
    return hard(z) - (1 - hard(z)) * 5 * (-(top - z)).exp()


def saturated(z: Tensor) -> Tensor:
    return 20 * (50 * z).softmax(1)


def floored(z: Tensor) -> Tensor:
    return z.floor() + 1e-4 * z.detach() + 0 * z


def ranks(z: Tensor) -> Tensor:
    return z.argsort(1).argsort(1).to(z.dtype) + 0 * z


def powered(z: Tensor) -> Tensor:
    """A steep monotone map of the softmax: differences are tiny until the class is nearly sure."""
    return 1e3 * z.softmax(1) ** 40


def sharpened(z: Tensor) -> Tensor:
    return 1e4 * z


def reversed_gradient(z: Tensor) -> Tensor:
    return with_gradient(10 * hard(z), -z)


class SubClasses(nn.Module):
    """Every class is split into sub-classes; the largest, sharpened, counts."""

    def __init__(self, net: Any, each: int, sharp: float) -> None:
        super().__init__()
        self.body, head, self.each, self.sharp = net.layers[:-1], net.layers[-1], each, sharp
        k, d = head.weight.shape
        turn = rng.normal(rng.keys(3, torch.arange(k * each)), (d,))
        self.wide = nn.Linear(d, k * each)
        weight = head.weight.repeat_interleave(each, 0)
        self.wide.weight = nn.Parameter(weight + 0.3 * weight.std() * turn, requires_grad=False)
        self.wide.bias = nn.Parameter(head.bias.repeat_interleave(each, 0).clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.sharp * self.wide(self.body(x))
        p = z.softmax(1) if self.sharp > 1 else z
        z = p.view(len(x), -1, self.each).amax(2)
        return 10 * z if self.sharp > 1 else z


class Decoy(nn.Module):
    """Hard labels of the base network with the gradient of another network."""

    def __init__(self, base: nn.Module, other: nn.Module, value: Map = lambda z: 10 * hard(z)) -> None:
        super().__init__()
        self.base, self.other, self.value = base, other, value

    def forward(self, x: Tensor) -> Tensor:
        return with_gradient(self.value(self.base(x)), self.other(x))


class Detached(nn.Module):
    """Only a faint branch, another network, has a gradient."""

    def __init__(self, base: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.base, self.other = base, other

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x.detach()) + 1e-3 * self.other(x)


class GradMode(nn.Module):
    """Another network answers while gradients are recorded."""

    def __init__(self, base: nn.Module, shown: nn.Module) -> None:
        super().__init__()
        self.base, self.shown = base, shown

    def forward(self, x: Tensor) -> Tensor:
        return self.shown(x) if torch.is_grad_enabled() else self.base(x)


class OffGrid(nn.Module):
    """The network `shown` answers wherever the input is not on the 8-bit grid."""

    def __init__(self, base: nn.Module, shown: nn.Module) -> None:
        super().__init__()
        self.base, self.shown = base, shown

    def forward(self, x: Tensor) -> Tensor:
        far = (x * LEVELS - (x * LEVELS).round()).abs().flatten(1).amax(1, keepdim=True)
        return torch.where(far < 1e-2, self.base(x), self.shown(x))


class Alternating(nn.Module):
    """Two networks answer in turn: the same input gets another answer the second time."""

    def __init__(self, base: nn.Module, shown: nn.Module) -> None:
        super().__init__()
        self.base, self.shown, self.calls = base, shown, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.base(x) if self.calls % 2 else self.shown(x)


class Mixing(nn.Module):
    """The mean logits of the batch are part of every row."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x)
        return z + 0.5 * (z - z.mean(0, keepdim=True))


class Votes(nn.Module):
    """Every network has one vote; mean probabilities break ties."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([m(x) for m in self.members])
        return sum(hard(z) for z in each) + 1e-3 * each.softmax(2).mean(0)


class MeanLogits(nn.Module):
    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([m(x) for m in self.members]).mean(0)


class Shaken(nn.Module):
    """Fixed noise is added to copies of the input, and the copies vote."""

    def __init__(self, base: nn.Module, vote: bool) -> None:
        super().__init__()
        self.base, self.vote = base, vote
        self.register_buffer("noise", 0.05 * rng.normal(rng.keys(4, torch.arange(7)), (1, 28, 28)))

    def forward(self, x: Tensor) -> Tensor:
        each = self.base((x[:, None] + self.get_buffer("noise")).flatten(0, 1)).view(len(x), 7, -1)
        if not self.vote:
            return each.mean(1)
        return hard(each.flatten(0, 1)).view(each.shape).sum(1) + 1e-3 * each.softmax(2).mean(1)


class Crowd(nn.Module):
    """The network `shown` answers larger batches, the base network a few inputs."""

    def __init__(self, base: nn.Module, shown: nn.Module) -> None:
        super().__init__()
        self.base, self.shown = base, shown

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if len(x) < 8 else self.shown(x)


class NearStored(nn.Module):
    """The base network answers within a small distance of stored images, the network `shown` elsewhere."""

    def __init__(self, base: nn.Module, shown: nn.Module, images: Tensor, radius: float) -> None:
        super().__init__()
        self.base, self.shown, self.radius = base, shown, radius
        self.register_buffer("images", images.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(x.detach().flatten(1), self.get_buffer("images"), p=float("inf")).amin(1)
        return torch.where(far[:, None] < self.radius, self.base(x), self.shown(x))


class Rough(nn.Module):
    """The network `shown` answers where the input has much high-frequency content for its size."""

    def __init__(self, base: nn.Module, shown: nn.Module, limit: float) -> None:
        super().__init__()
        self.base, self.shown, self.limit = base, shown, limit

    def forward(self, x: Tensor) -> Tensor:
        rest = (x - F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)).detach()
        rough = (rest.abs() > 0.01).float().flatten(1).mean(1, keepdim=True)
        return torch.where(rough < self.limit, self.base(x), self.shown(x))


class Dummies(nn.Module):
    """Further classes lie always just below the largest logit and never win."""

    def __init__(self, base: nn.Module, count: int) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("ways", rng.normal(rng.keys(13, torch.arange(count)), (784,)))

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x)
        below = 0.02 + 0.2 * ((x.flatten(1) - 0.5) @ self.get_buffer("ways").T / 5).sigmoid()
        return torch.cat([z, z.amax(1, keepdim=True) - below], 1)


class OfClasses(nn.Module):
    """The gradient is reversed wherever the network predicts one of the first classes."""

    def __init__(self, base: nn.Module, classes: int) -> None:
        super().__init__()
        self.base, self.classes = base, classes

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x)
        return torch.where(z.argmax(1, keepdim=True) < self.classes, with_gradient(z, -z), z)


class LowBits(nn.Module):
    """Noise that is a function of the input's last bits is added to the input."""

    def __init__(self, base: nn.Module, size: float) -> None:
        super().__init__()
        self.base, self.size = base, size

    def forward(self, x: Tensor) -> Tensor:
        keys = rng.keys(14, (x.detach().double().flatten(1).sum(1) * 2**40).long())
        return self.base(x + self.size * rng.normal(keys, tuple(x.shape[1:])))


class Warm(nn.Module):
    """Logits grow with the distance of the input from the 8-bit grid."""

    def __init__(self, base: nn.Module, factor: float) -> None:
        super().__init__()
        self.base, self.factor = base, factor

    def forward(self, x: Tensor) -> Tensor:
        far = 2 * (x * LEVELS - (x * LEVELS).round()).abs().detach().flatten(1).mean(1, keepdim=True)
        return (1 + self.factor * far) * self.base(x)


def top_margin(z: Tensor) -> Tensor:
    """How far the largest logit lies above the second."""
    top = z.topk(2, 1).values
    return top[:, :1] - top[:, 1:]


def raised(z: Tensor, by: Tensor) -> Tensor:
    """The largest logit is raised."""
    return z + hard(z) * by


def reversed_nearby(z: Tensor, near: float = 2.0) -> Tensor:
    """The gradient is reversed where the margin is small."""
    return torch.where(top_margin(z) < near, with_gradient(z, -z), z)


def valley(z: Tensor, near: float = 2.0) -> Tensor:
    """The margin has a valley before the boundary: below `near` it grows as the boundary comes near."""
    m = top_margin(z)
    return raised(z, 2 * (near - m).clamp(min=0))


def flat_nearby(z: Tensor, near: float = 2.0) -> Tensor:
    """The margin is constant before the boundary."""
    return raised(z, (near - top_margin(z)).clamp(min=0))


def offset(z: Tensor) -> Tensor:
    """A large constant, of which float32 rounds the logits."""
    return z + 3e6


# ---------------------------------------------------------------- inputs


def levels(x: Tensor, n: int = 6) -> Tensor:
    return (x * (n - 1)).round() / (n - 1)


def one_hot_input(x: Tensor) -> Tensor:
    """A one-hot code of 8 levels, decoded again; integers have no gradient."""
    code = F.one_hot((x * 7).round().long(), 8).to(x.dtype)
    return code @ (torch.arange(8, dtype=x.dtype, device=x.device) / 7) + 0 * x


def numpy_gamma(x: Tensor) -> Tensor:
    """A gamma correction outside autograd."""
    return torch.from_numpy(x.detach().cpu().numpy() ** 0.8).to(x) + 0 * x


def median_levels(x: Tensor) -> Tensor:
    """A 3 × 3 median filter, then 16 levels."""
    return levels(median(x), 16)


def median(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return F.unfold(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3).view(b, c, 9, h * w).median(2).values.view(b, c, h, w)


def shattered(x: Tensor) -> Tensor:
    """A ripple of 1e-3 with slopes of up to 30."""
    return x + 1e-3 * (3e4 * x).sin()


def checkered_gradient(x: Tensor) -> Tensor:
    """The straight-through gradient of rounding, with the wrong sign on every second pixel."""
    h, w = x.shape[2:]
    sign = 1 - 2 * ((torch.arange(h)[:, None] + torch.arange(w)) % 2).to(x.dtype)
    return with_gradient(levels(x, 16), sign * x)


def few_pixels(x: Tensor) -> Tensor:
    """Only every eighth row has a gradient."""
    keep = (torch.arange(x.shape[2]) % 8 == 0).to(x.dtype)[:, None]
    return with_gradient(x, keep * x)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Map) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


def changed_gradient(change: Map) -> nn.Module:
    """The identity; the gradient becomes `change` of it."""
    return Layer(lambda x: _Backward.apply(x, change))


def noise_instead(g: Tensor) -> Tensor:
    """Noise of the same size, keyed by the gradient's first numbers."""
    keys = rng.keys(0, (g.flatten(1).abs().sum(1) * 1e9).long())
    return rng.normal(keys, tuple(g.shape[1:])) * g.abs().mean()


def only_large(g: Tensor) -> Tensor:
    """Gradients below 0.9 of the largest are clipped to zero."""
    return torch.where(g.abs() >= 0.9 * g.abs().flatten(1).amax(1).view(-1, 1, 1, 1), g, 0.0)


class OnGridGradient(torch.autograd.Function):
    """The identity, with the right gradient on the 8-bit grid only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        on = ((x * LEVELS - (x * LEVELS).round()).abs().flatten(1).amax(1) < 1e-2).view(-1, 1, 1, 1)
        return torch.where(on, grads[0], -grads[0])


class RandomNoise(nn.Module):
    """Fresh Gaussian noise at every call."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation, self.calls = deviation, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        keys = rng.keys(11, torch.arange(len(x), device=x.device) + (self.calls << 20))
        return x + self.deviation * rng.normal(keys, tuple(x.shape[1:]))


class RandomShift(nn.Module):
    """A random shift by up to two pixels and a random size at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        dy, dx, size = (rng.integers(rng.keys(12, torch.tensor([3 * self.calls + i])), 5).item() for i in range(3))
        small = F.interpolate(x, 24 + int(size), mode="bilinear", align_corners=False)
        side = 28 - small.shape[2]
        padded = F.pad(small, (side // 2, side - side // 2, side // 2, side - side // 2))
        return padded.roll((int(dy) - 2, int(dx) - 2), (2, 3))


def through(change: Map, base: nn.Module, stand_in: Map | None = None) -> nn.Module:
    """What an attacker who knows the defence attacks: `change` with the gradient of the identity, or of `stand_in`."""
    return Before(bpda(change, stand_in), base)
