"""Backward pass differentiable approximation (BPDA): gradients for layers that have none."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


class _BpdaFunction(torch.autograd.Function):
    """The autograd function that computes `forward` and, in the backward pass, the gradient of `stand_in`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Function, stand_in: Function) -> Tensor:
        ctx.save_for_backward(x)
        ctx.stand_in = stand_in
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            result = ctx.stand_in(point)
        (gradient,) = torch.autograd.grad(result, point, grads[0])
        return gradient, None, None


class _Bpda(nn.Module):
    def __init__(self, forward: Function, backward: Function) -> None:
        super().__init__()
        # A module becomes a submodule, so that its weights are moved and fingerprinted with the rest.
        self.outward, self.stand_in = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _BpdaFunction.apply(x, self.outward, self.stand_in)
        return result


def _identity(x: Tensor) -> Tensor:
    return x


def straight_through(x: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the gradient of `x`, which has the same shape: the identity in the backward pass.

    >>> x = torch.tensor([0.3], requires_grad=True)
    >>> straight_through(x, x.round()).backward()
    >>> x.grad.item()
    1.0
    """
    result: Tensor = _BpdaFunction.apply(x, lambda _: value.detach().clone(), _identity)
    return result


def bpda(forward: Function, backward: Function | None = None) -> nn.Module:
    """Return a module that computes `forward` but has the gradient of the function `backward` (default: the identity).

    Use it for layers of a defence that have no useful gradient. Reference: Athalye, Carlini & Wagner 2018.

    >>> quantise = bpda(lambda x: (x * 4).round() / 4)
    >>> x = torch.tensor([0.3], requires_grad=True)
    >>> quantise(x).backward()
    >>> quantise(x).item(), x.grad.item()
    (0.25, 1.0)
    """
    return _Bpda(forward, backward or _identity)


def bpda_parts(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the submodules that `bpda` made.

    >>> bpda_parts(nn.Sequential(nn.ReLU(), bpda(torch.round)))
    ('1',)
    """
    return tuple(name for name, part in module.named_modules() if isinstance(part, _Bpda))


def has_bpda(module: nn.Module | None) -> bool:
    """Return whether a part of the module has the gradient of another function on purpose.

    >>> has_bpda(nn.Sequential(bpda(torch.round))), has_bpda(nn.ReLU()), has_bpda(None)
    (True, False, False)
    """
    return module is not None and any(isinstance(part, _Bpda) for part in module.modules())
