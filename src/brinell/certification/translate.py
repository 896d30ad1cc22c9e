"""Translate modules, functions and methods of torch into operations that have bounds.

A translation takes the builder and the arguments of the call. It raises NotImplementedError with the reason for an
option that has no bounds.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brinell.certification import activations
from brinell.certification.activations import Activation, Relu
from brinell.certification.network import Builder, Value
from brinell.certification.operations import (
    CONVOLUTIONS,
    Concatenation,
    Convolution,
    Linear,
    Mapping,
    Reshape,
    Scale,
    Sum,
)

Translation = Callable[..., Any]


def _tuple(value: int | tuple[int, ...], n: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * n


def _optional(b: Builder, value: Any) -> Tensor | None:
    return None if value is None else b.constant(value)


# ------------------------------------------------------------------------------------------------- layers with weights


def linear(b: Builder, x: Value, weight: Any, bias: Any = None) -> Value:
    """Translate a fully connected layer."""
    return b.add(Linear(b.constant(weight), _optional(b, bias)), x, name="linear")


def convolution(
    b: Builder, x: Value, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Value:  # fmt: skip
    """Translate a convolution in 1, 2 or 3 dimensions."""
    n = weight.ndim - 2
    if n not in CONVOLUTIONS or len(x.shape) != n + 2:
        raise NotImplementedError("only convolutions of batches in 1, 2 or 3 dimensions have bounds")
    dilation = _tuple(dilation, n)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            raise NotImplementedError("padding 'same' with an even kernel has no bounds; pad with numbers instead")
        padding = tuple(t // 2 for t in total)
    padding = (0,) * n if padding == "valid" else _tuple(padding, n)
    offset = None if bias is None else b.constant(bias).reshape(-1, *[1] * n)
    return b.add(
        Convolution(b.constant(weight), offset, _tuple(stride, n), padding, dilation, groups), x, name="convolution"
    )


def _conv_module(b: Builder, m: Any, x: Value) -> Value:
    if m.padding_mode != "zeros":
        raise NotImplementedError(f"padding mode {m.padding_mode!r} has no bounds; use zeros")
    return convolution(b, x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)


def _batch_norm(b: Builder, m: Any, x: Value) -> Value:
    if m.running_mean is None or m.running_var is None:
        raise NotImplementedError("batch normalisation without running statistics mixes the rows of a batch")
    shape = (-1, *[1] * (len(x.shape) - 2))
    mean, variance = b.constant(m.running_mean), b.constant(m.running_var)
    factor = (variance + m.eps).rsqrt()
    if m.weight is not None:
        factor = factor * b.constant(m.weight)
    bias = 0.0 if m.bias is None else b.constant(m.bias)
    offset, inner = bias - mean * factor, (mean * factor).abs() + abs(bias)
    parts = (v.reshape(shape) for v in (factor, offset, inner))
    factor, offset, inner = parts
    return b.add(Scale(factor, offset, 8, inner), x, name="batch normalisation")


# ------------------------------------------------------------------------------------------------ activation functions


def _activate(b: Builder, x: Value, function: Activation, name: str) -> Value:
    return b.add(function, x, name=name)


def relu(b: Builder, x: Value, inplace: bool = False) -> Value:
    """Translate ReLU."""
    return _activate(b, x, Relu(), "ReLU")


def leaky_relu(b: Builder, x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    """Translate leaky ReLU."""
    if not 0 <= negative_slope <= 1:
        raise NotImplementedError(f"leaky ReLU with slope {negative_slope} has no bounds; use a slope in [0, 1]")
    return _activate(b, x, Relu(float(negative_slope)), "leaky ReLU")


def relu6(b: Builder, x: Value, inplace: bool = False) -> Value:
    """Translate ReLU6 as 6 − ReLU(6 − ReLU(x))."""
    minus, six = b.constant(-1.0), b.constant(6.0)
    inner = b.add(Scale(minus, six), relu(b, x))
    return b.add(Scale(minus, six), relu(b, inner))


def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    """Translate GELU."""
    return _activate(b, x, activations.gelu(approximate), "GELU")


def _smooth(name: str, make: Callable[[], Activation]) -> Translation:
    def translate(b: Builder, x: Value, inplace: bool = False) -> Value:
        return _activate(b, x, make(), name)

    return translate


tanh = _smooth("tanh", activations.tanh)
sigmoid = _smooth("sigmoid", activations.sigmoid)
silu = _smooth("SiLU", activations.silu)


# ------------------------------------------------------------------------------------------- shapes, pooling, constants


def unchanged(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    """Translate an operation that does nothing in evaluation mode, and changes of precision and memory."""
    return x


def dropout(b: Builder, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """Translate dropout, which does nothing in evaluation mode."""
    if training and p > 0:
        raise NotImplementedError("it drops values at random here; pass training=self.training")
    return x


def _row_by_row(b: Builder, x: Value, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the result for one row; refuse a function that mixes rows or changes the precision."""
    one = b.samples[x.at]
    found = function(one)
    if found.ndim < 1 or found.shape[0] != 1 or found.dtype != one.dtype:
        raise NotImplementedError("it changes the dimension of the batch, or the precision; keep both")
    try:
        rows = function(torch.cat([one, one]))
    except (RuntimeError, IndexError):
        rows = found
    if rows.shape != (2, *found.shape[1:]):
        raise NotImplementedError("it mixes the samples of a batch; keep the first dimension")
    return found


def mapped(function: Callable[..., Tensor], name: str) -> Translation:
    """Return the translation of a linear function without negative coefficients."""

    def translate(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
        before = int(torch.Size(x.shape).numel())
        probe = _row_by_row(b, x, lambda v: function(v, *args, **kwargs))
        # A sum or mean has as many terms as it has inputs per output, and one division.
        terms = 0 if name in EXACT else before // max(probe.numel(), 1) + 2
        return b.add(Mapping(lambda v: function(v, *args, **kwargs), terms=terms), x, name=name)

    return translate


EXACT = ("selection", "permutation", "padding")


def _average(function: Callable[..., Tensor]) -> Translation:
    def translate(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
        size = kwargs.get("kernel_size", args[0] if args else 1)
        terms = int(torch.Size(_tuple(size, len(x.shape) - 2)).numel()) + 2
        return b.add(Mapping(lambda v: function(v, *args, **kwargs), terms=terms), x, name="average pooling")

    return translate


def _average_module(b: Builder, m: Any, x: Value) -> Value:
    n = len(x.shape) - 2
    terms = int(torch.Size(_tuple(m.kernel_size, n)).numel()) + 2
    return b.add(Mapping(lambda v: m(v), terms=terms), x, name="average pooling")


def _adaptive_module(b: Builder, m: Any, x: Value) -> Value:
    terms = int(torch.Size(x.shape[2:]).numel()) + 2
    return b.add(Mapping(lambda v: m(v), terms=terms), x, name="average pooling")


def _adaptive(function: Callable[..., Tensor]) -> Translation:
    def translate(b: Builder, x: Value, output_size: Any) -> Value:
        terms = int(torch.Size(x.shape[2:]).numel()) + 2
        return b.add(Mapping(lambda v: function(v, output_size), terms=terms), x, name="average pooling")

    return translate


def reshaped(function: Callable[..., Tensor]) -> Translation:
    """Return the translation of a function that changes the shape only."""

    def translate(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
        shape = tuple(function(b.samples[x.at], *args, **kwargs).shape)
        if not shape or shape[0] != 1:
            raise NotImplementedError("it changes the dimension of the batch; keep the first dimension")
        return b.add(Reshape(shape[1:]), x, name="reshape")

    return translate


def _flatten_module(b: Builder, m: Any, x: Value) -> Value:
    return _as(reshaped(torch.flatten)(b, x, m.start_dim, m.end_dim))


def _unflatten_module(b: Builder, m: Any, x: Value) -> Value:
    return _as(reshaped(torch.unflatten)(b, x, m.dim, m.unflattened_size))


def _as(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


def add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    """Translate an addition of two values, or of a value and a constant."""
    if isinstance(x, Value) and isinstance(y, Value):
        return b.add(Sum(), x, y if alpha == 1 else multiply(b, y, alpha), name="addition")
    value, constant = (x, b.constant(y) * alpha) if isinstance(x, Value) else (y, b.constant(x))
    factor = b.constant(1.0 if isinstance(x, Value) else alpha)
    return b.add(Scale(factor, _row(constant, value)), value, name="addition")


def subtract(b: Builder, x: Any, y: Any) -> Value:
    """Translate a difference."""
    if isinstance(x, Value) and isinstance(y, Value):
        return b.add(Sum(-1), x, y, name="difference")
    if isinstance(x, Value):
        return add(b, x, -b.constant(y))
    return b.add(Scale(b.constant(-1.0), _row(b.constant(x), y)), y, name="difference")


def multiply(b: Builder, x: Any, y: Any) -> Value:
    """Translate a product with a constant."""
    if isinstance(x, Value) and isinstance(y, Value):
        raise NotImplementedError("the product of two values that depend on the input has no bounds")
    value, constant = (x, y) if isinstance(x, Value) else (y, x)
    return b.add(Scale(_row(b.constant(constant), value)), value, name="product")


def divide(b: Builder, x: Any, y: Any) -> Value:
    """Translate a division by a constant."""
    if isinstance(y, Value):
        raise NotImplementedError("a division by a value that depends on the input has no bounds")
    return b.add(Scale(_row(1 / b.constant(y), x), None, 3), x, name="division")


def negate(b: Builder, x: Value) -> Value:
    """Translate a change of sign."""
    return multiply(b, x, -1.0)


def _row(constant: Tensor, value: Value) -> Tensor:
    """Return a constant of an addition or product as one row that broadcasts over the rows of the value."""
    if constant.ndim >= len(value.shape):
        if constant.ndim > len(value.shape) or constant.shape[0] != 1:
            raise NotImplementedError("a constant with more dimensions than one row has no bounds")
        constant = constant[0]
    if len(torch.broadcast_shapes(constant.shape, value.shape[1:])) != len(value.shape) - 1:
        raise NotImplementedError("a constant that widens the value has no bounds")
    return constant


def concatenate(b: Builder, values: Any, dim: int = 0) -> Value:
    """Translate a concatenation."""
    if not all(isinstance(v, Value) for v in values):
        raise NotImplementedError("a concatenation with a constant has no bounds")
    dim = dim % len(values[0].shape)
    if dim == 0:
        raise NotImplementedError("a concatenation along the batch mixes rows")
    return b.add(Concatenation(dim), *values, name="concatenation")


# --------------------------------------------------------------------------------------------------------------- maxima


def maximum(b: Builder, x: Value, y: Value) -> Value:
    """Translate max(x, y) as y + ReLU(x − y)."""
    if not isinstance(x, Value) or not isinstance(y, Value):
        raise NotImplementedError("the maximum with a constant has no bounds; use ReLU")
    return b.add(Sum(), y, relu(b, b.add(Sum(-1), x, y)), name="maximum")


def max_pool(
    b: Builder, x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Value:  # fmt: skip
    """Translate max pooling as a tournament of maxima over the positions of the window."""
    n = len(x.shape) - 2
    kernel, pad = _tuple(kernel_size, n), _tuple(padding, n)
    steps = _tuple(stride if stride else kernel_size, n)
    if ceil_mode or return_indices or set(_tuple(dilation, n)) != {1}:
        raise NotImplementedError("max pooling with ceil_mode, dilation or indices has no bounds")
    if any(pad):
        # A window that reaches beyond the border holds the border's value already: repeating it changes no maximum.
        widths = [w for p in reversed(pad) for w in (p, p)]
        x = _as(mapped(lambda v: F.pad(v, widths, mode="replicate"), "padding")(b, x))
    sizes = [(size - k) // s + 1 for size, k, s in zip(x.shape[2:], kernel, steps, strict=True)]
    places = torch.cartesian_prod(*[torch.arange(k, device="cpu") for k in kernel]).reshape(-1, n).tolist()
    return _tournament(b, [_selected(b, x, place, steps, sizes) for place in places])


def _selected(b: Builder, x: Value, place: list[int], steps: tuple[int, ...], sizes: list[int]) -> Value:
    whole = slice(None)
    cut = [whole, whole] + [slice(p, p + (size - 1) * s + 1, s) for p, s, size in zip(place, steps, sizes, strict=True)]
    return _as(mapped(lambda v: v[tuple(cut)], "selection")(b, x))


def _tournament(b: Builder, values: list[Value]) -> Value:
    while len(values) > 1:
        pairs = [maximum(b, x, y) for x, y in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def _max_module(b: Builder, m: Any, x: Value) -> Value:
    return max_pool(b, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def size(b: Builder, x: Value, dim: int | None = None) -> Any:
    """Translate the size of a value; the batch counts as one row."""
    return x.shape if dim is None else x.shape[dim]


def _attribute(b: Builder, x: Value, name: str) -> Any:
    if name == "shape":
        return x.shape
    raise NotImplementedError(f"the attribute {name} of a value has no bounds")


def item(b: Builder, x: Value, index: Any) -> Value:
    """Translate an index or slice that leaves the batch alone."""
    first = index[0] if isinstance(index, tuple) else index
    if first is not Ellipsis and first != slice(None):
        raise NotImplementedError("an index along the batch has no bounds")
    return _as(mapped(lambda v: v[index], "selection")(b, x))


def _module_without(translation: Translation) -> Translation:
    """Return the translation of a module whose options do not matter."""
    return lambda b, m, x: translation(b, x)


MODULES: dict[type[nn.Module], Translation] = {
    nn.Linear: lambda b, m, x: linear(b, x, m.weight, m.bias),
    nn.Conv1d: _conv_module,
    nn.Conv2d: _conv_module,
    nn.Conv3d: _conv_module,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.ReLU: _module_without(relu),
    nn.ReLU6: _module_without(relu6),
    nn.LeakyReLU: lambda b, m, x: leaky_relu(b, x, m.negative_slope),
    nn.Tanh: _module_without(tanh),
    nn.Sigmoid: _module_without(sigmoid),
    nn.SiLU: _module_without(silu),
    nn.GELU: lambda b, m, x: gelu(b, x, m.approximate),
    nn.AvgPool1d: _average_module,
    nn.AvgPool2d: _average_module,
    nn.AvgPool3d: _average_module,
    nn.AdaptiveAvgPool1d: _adaptive_module,
    nn.AdaptiveAvgPool2d: _adaptive_module,
    nn.AdaptiveAvgPool3d: _adaptive_module,
    nn.MaxPool1d: _max_module,
    nn.MaxPool2d: _max_module,
    nn.MaxPool3d: _max_module,
    nn.Flatten: _flatten_module,
    nn.Unflatten: _unflatten_module,
    nn.Identity: _module_without(unchanged),
    nn.Dropout: _module_without(unchanged),
    nn.Dropout1d: _module_without(unchanged),
    nn.Dropout2d: _module_without(unchanged),
    nn.Dropout3d: _module_without(unchanged),
}
_MEAN, _SUM = mapped(torch.mean, "mean"), mapped(torch.sum, "sum")
FUNCTIONS: dict[Any, Translation] = {
    F.linear: linear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.relu: relu,
    torch.relu: relu,
    F.relu6: relu6,
    F.leaky_relu: leaky_relu,
    torch.tanh: tanh,
    F.tanh: tanh,
    torch.sigmoid: sigmoid,
    F.sigmoid: sigmoid,
    F.gelu: gelu,
    F.silu: silu,
    F.avg_pool1d: _average(F.avg_pool1d),
    F.avg_pool2d: _average(F.avg_pool2d),
    F.adaptive_avg_pool1d: _adaptive(F.adaptive_avg_pool1d),
    F.adaptive_avg_pool2d: _adaptive(F.adaptive_avg_pool2d),
    F.max_pool1d: max_pool,
    F.max_pool2d: max_pool,
    F.dropout: dropout,
    torch.flatten: reshaped(torch.flatten),
    torch.reshape: reshaped(torch.reshape),
    torch.squeeze: reshaped(torch.squeeze),
    torch.unsqueeze: reshaped(torch.unsqueeze),
    torch.permute: mapped(torch.permute, "permutation"),
    torch.transpose: mapped(torch.transpose, "permutation"),
    torch.mean: _MEAN,
    torch.sum: _SUM,
    torch.cat: concatenate,
    torch.concat: concatenate,
    torch.maximum: maximum,
    torch.add: add,
    operator.add: add,
    operator.iadd: add,
    torch.sub: subtract,
    operator.sub: subtract,
    operator.isub: subtract,
    torch.mul: multiply,
    operator.mul: multiply,
    operator.imul: multiply,
    torch.div: divide,
    operator.truediv: divide,
    operator.itruediv: divide,
    operator.neg: negate,
    torch.neg: negate,
    operator.getitem: item,
    getattr: _attribute,
}
METHODS: dict[str, Translation] = {
    "relu": relu,
    "relu_": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "flatten": FUNCTIONS[torch.flatten],
    "reshape": reshaped(Tensor.reshape),
    "view": reshaped(Tensor.reshape),
    "squeeze": reshaped(Tensor.squeeze),
    "unsqueeze": reshaped(Tensor.unsqueeze),
    "permute": mapped(Tensor.permute, "permutation"),
    "transpose": mapped(Tensor.transpose, "permutation"),
    "mean": mapped(Tensor.mean, "mean"),
    "sum": mapped(Tensor.sum, "sum"),
    "size": size,
    "add": add,
    "add_": add,
    "sub": subtract,
    "mul": multiply,
    "div": divide,
    "contiguous": unchanged,
    "float": unchanged,
    "clone": unchanged,
    "detach": unchanged,
}
