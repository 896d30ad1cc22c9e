"""Probe the submodules of a model for gradients that do not say how their output changes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from brinell.models.bpda import bpda_parts
from brinell.models.surrogate import Hook, hooked
from brinell.models.wrap import TorchClassifier
from brinell.ops.rowwise import flat

# A gradient explains the change of an output if the predicted change is within these multiples of the true one.
EXPLAINED = (0.5, 2.0)
# Gradients at two points of the ball point the same way at least this much (cosine, median over samples).
STEADY = 0.3
# Larger models are probed in part: that many submodules.
MOST = 400


@dataclass(frozen=True)
class Probed:
    """What the probe of one submodule found: the share of the true change that the gradient predicts, and a sentence.

    `sentence` is empty if nothing is wrong. With a `width` the slopes over it can replace the gradient, else the
    identity can.
    """

    name: str
    share: float
    sentence: str
    width: float = 0.0


def record_calls(classifier: TorchClassifier, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the input and output of every submodule in a pass of the model, if it is called with one tensor.

    Only the first call of a submodule counts. The model itself is not included.
    """
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Hook:
        def record(_: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
            if name not in calls and len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(out, Tensor):
                calls[name] = (inputs[0], out)

        return record

    names = [name for name, _ in classifier.module.named_modules() if name][:MOST]
    with hooked(classifier.module, {name: hook(name) for name in names}):
        classifier.forward(x)
    return calls


def misleading_modules(classifier: TorchClassifier, x: Tensor, nearby: Tensor) -> list[Probed]:
    """Return the submodules with a misleading gradient that can be replaced, the innermost of each.

    Method: the input of a submodule goes from its value at x to its value at the points `nearby`. The output changes
    by c. The mean of the gradients at both ends predicts a change; its part along c is compared with c. A share far
    from 1 means a gradient that is zero, negated, noise or not finite; gradients that turn between the two ends mean a
    shattered response. Probed are submodules whose output has the shape of the input, which the identity can replace,
    and those that map every pixel on its own to several channels, such as a thermometer encoding. Cost: three passes of
    the model and a few of each submodule. Reference: Athalye, Carlini & Wagner 2018 (BPDA), for what is done with them.
    """
    with torch.no_grad():
        here, there = record_calls(classifier, x), record_calls(classifier, nearby)
    # Gradients do not pass through what lies inside these.
    closed = tuple(f"{name}." for name in bpda_parts(classifier.module))
    probed = []
    for name, (u, v) in here.items():
        if name not in there or name.startswith(closed) or not u.is_floating_point() or not v.is_floating_point():
            continue
        module, w = classifier.module.get_submodule(name), there[name][0]
        if u.shape == v.shape:
            probed.append(_probe(name, module, u, w))
        elif _maps_pixels(module, u, w, v):
            probed.append(replace(_probe(name, module, u, w), width=float((w - u).abs().max())))
    wrong = [p for p in probed if p.sentence]
    return [p for p in wrong if not any(q.name.startswith(f"{p.name}.") for q in wrong)]


def _maps_pixels(module: nn.Module, u: Tensor, w: Tensor, v: Tensor) -> bool:
    """Return whether each output, of which `v` are those at u, depends on the input at its own place only."""
    if not (u.ndim == v.ndim == 4 and u.shape[2:] == v.shape[2:] and u.shape[2] > 1):
        return False
    even = (torch.arange(u.shape[2], device=u.device)[:, None] + torch.arange(u.shape[3], device=u.device)) % 2 == 0
    with torch.no_grad():
        return torch.equal(module(torch.where(even, u, w)), torch.where(even, v, module(w)))


def _probe(name: str, module: nn.Module, u: Tensor, w: Tensor) -> Probed:
    with torch.no_grad():
        again = [module(u) for _ in range(2)]
        change = module(w) - again[0]
    if not torch.equal(*again):
        return Probed(name, 1.0, "")  # it draws noise: averages are the remedy
    moved = flat(w - u)
    size = float(change.square().sum())
    if size == 0:
        flatness = "its output does not change with its input" if bool(moved.any()) else ""
        return Probed(name, 0.0 if flatness else 1.0, flatness)
    ends = list(_gradients(module, (u, w), change))
    if any(g is None for g in ends):
        return Probed(name, 0.0, "it has no gradient")
    first, second = (flat(g) for g in ends if g is not None)
    if not bool((first.isfinite() & second.isfinite()).all()):
        return Probed(name, 0.0, "its gradient is not finite")
    share = float(((first + second) / 2 * moved).sum()) / size
    cosine = float(torch.cosine_similarity(first, second, dim=1).median())
    if not EXPLAINED[0] <= share <= EXPLAINED[1]:
        return Probed(name, share, f"its gradient predicts {share:.2f} times the change of its output")
    if cosine < STEADY:
        return Probed(name, share, f"its gradients at two points of the ball disagree (cosine {cosine:.2f})")
    return Probed(name, share, "")


def _gradients(module: nn.Module, points: tuple[Tensor, ...], along: Tensor) -> Iterator[Tensor | None]:
    """Yield the gradient of the output, times `along`, at each of the points; None where there is none."""
    for point in points:
        leaf = point.detach().clone().requires_grad_(True)
        try:
            with torch.enable_grad():
                (grad,) = torch.autograd.grad(module(leaf), leaf, along, allow_unused=True)
        except RuntimeError:
            grad = None
        yield grad
