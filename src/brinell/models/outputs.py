"""Find the logits in what a module returns, and call a module in the dtype of its weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brinell.errors import ModelError

LOGITS = "logits"
# With fewer bits of exponent than float32, small gradients vanish.
NARROW = torch.float16


def logits_of(raw: Any, rows: int) -> Tensor:
    """Return the logits in a module's output: itself, its `logits`, its key "logits", or its first entry.

    >>> logits_of({"logits": torch.zeros(2, 3), "loss": None}, 2).shape
    torch.Size([2, 3])
    """
    found = raw
    if isinstance(raw, Mapping):
        found = raw.get(LOGITS)
    elif isinstance(getattr(raw, LOGITS, None), Tensor):
        found = getattr(raw, LOGITS)
    elif isinstance(raw, tuple | list) and raw:
        found = raw[0]
    if isinstance(found, Tensor) and found.ndim in (1, 2) and len(found) == rows:
        return _floating(found)
    got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(raw).__name__
    if isinstance(raw, Mapping) and found is None:
        got = f"a {type(raw).__name__} with the keys {', '.join(map(str, raw)) or 'none'}"[:200]
    raise ModelError(
        expected=f"logits of shape ({rows}, classes) for {rows} inputs",
        got=got,
        remedy="Return the tensor of logits with one row per input, or an output with `logits`.",
    )


def _floating(raw: Tensor) -> Tensor:
    if not raw.is_floating_point():
        raise ModelError(
            expected="logits in floating point",
            got=f"{str(raw.dtype).removeprefix('torch.')}, the dtype of class labels",
            remedy="Return the logits, without argmax. For a black box that returns classes, use "
            "brinell.models.adapters.from_function(…, outputs='labels').",
        )
    return raw


def input_dtype(module: nn.Module, x: Tensor) -> torch.dtype:
    """Return the dtype in which the module takes inputs such as x, which is float32.

    That is float32 if the module accepts it, as modules with weights in float32 and modules that cast by themselves do,
    or else the dtype of its first weights: half precision and double precision are called as they are.
    """
    weights = next((v for v in (*module.parameters(), *module.buffers()) if v.is_floating_point()), x)
    if weights.dtype == x.dtype:
        return x.dtype
    try:
        with torch.no_grad():
            module(x)
    except RuntimeError:
        return weights.dtype
    return x.dtype


class GradientScaling:
    """Casts to and from half precision around a module, without gradients that vanish on the way back.

    Method: each row's gradient at the logits is multiplied by a power of two that brings it near 1, and the gradient at
    the input is divided by it. Rows are independent, so this is exact. In half precision, the gradient of the cross
    entropy of a sure model would round to zero where float32 still has one.
    """

    def __init__(self) -> None:
        self.scale: Tensor | None = None

    def down(self, x: Tensor) -> Tensor:
        """Return the inputs in half precision."""
        cast: Tensor = _Down.apply(x, self)
        return cast

    def up(self, raw: Tensor) -> Tensor:
        """Return logits in float32."""
        cast: Tensor = _Up.apply(raw, self)
        return cast


def _like(scale: Tensor, values: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (values.ndim - 1))


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, scaling: GradientScaling) -> Tensor:
        ctx.scaling, ctx.dtype = scaling, raw.dtype
        return raw.float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        largest = grad.abs().flatten(1).amax(1) if grad.ndim > 1 else grad.abs()
        # A power of two, so that no digit changes.
        scale = torch.exp2(-torch.log2(largest).floor())
        ctx.scaling.scale = torch.where(scale.isfinite() & (scale > 0), scale, 1.0)
        return (grad * _like(ctx.scaling.scale, grad)).to(ctx.dtype), None


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scaling: GradientScaling) -> Tensor:
        ctx.scaling = scaling
        return x.to(NARROW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].float()
        return grad if ctx.scaling.scale is None else grad / _like(ctx.scaling.scale, grad), None
