"""Gradients of ONNX models: the graph in torch, of the usual operators of networks that classify."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from brinell.models.adapters.bridge import FLOOR, framework

Values = Sequence[Any]
Attributes = dict[str, Any]
Operator = Callable[[Values, Attributes], Any]


class UnsupportedError(ValueError):
    """An operator, or a use of it, that is not translated to torch."""


def _same(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda v, a: function(v[0])


def _optional(v: Values, i: int) -> Any:
    return v[i] if len(v) > i else None


def _list(v: Values, i: int, a: Attributes, name: str) -> list[int] | None:
    """Return a list of numbers that newer versions of an operator take as input i, and older ones as an attribute."""
    given = _optional(v, i)
    return given.tolist() if isinstance(given, Tensor) else a.get(name)


def _padded(x: Tensor, a: Attributes, value: float = 0.0) -> Tensor:
    if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise UnsupportedError(f"auto_pad {a['auto_pad']}")
    pads = a.get("pads", [])
    half = len(pads) // 2
    each = [n for begin, end in zip(pads[half - 1 :: -1], pads[: half - 1 : -1], strict=True) for n in (begin, end)]
    return F.pad(x, each, value=value) if any(each) else x


def _conv(v: Values, a: Attributes) -> Tensor:
    x, weight, bias = v[0], v[1], _optional(v, 2)
    n = weight.ndim - 2
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[n]
    ones = [1] * n
    out: Tensor = function(
        _padded(x, a), weight, bias, a.get("strides", ones), 0, a.get("dilations", ones), a.get("group", 1)
    )
    return out


def _max_pool(v: Values, a: Attributes) -> Tensor:
    size = a["kernel_shape"]
    if a.get("ceil_mode") or len(size) > 3:
        raise UnsupportedError("MaxPool with ceil_mode")
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(size) - 1]
    ones = [1] * len(size)
    x = _padded(v[0], a, -torch.inf)
    out: Tensor = function(x, size, a.get("strides", ones), 0, a.get("dilations", ones))
    return out


def _average_pool(v: Values, a: Attributes) -> Tensor:
    size, pads = a["kernel_shape"], a.get("pads", [])
    uncounted = any(pads) and not a.get("count_include_pad")
    if a.get("ceil_mode") or uncounted or any(d != 1 for d in a.get("dilations", ())):
        raise UnsupportedError("AveragePool with ceil_mode, dilations, or padding that is not counted")
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(size) - 1]
    out: Tensor = function(_padded(v[0], a), size, a.get("strides", [1] * len(size)))
    return out


def _batch_norm(v: Values, a: Attributes) -> Tensor:
    if a.get("training_mode"):
        raise UnsupportedError("BatchNormalization in training mode")
    x, weight, bias, mean, variance = v[:5]
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, a.get("epsilon", 1e-5))


def _gemm(v: Values, a: Attributes) -> Tensor:
    left = v[0].T if a.get("transA") else v[0]
    right = v[1].T if a.get("transB") else v[1]
    out: Tensor = a.get("alpha", 1.0) * (left @ right)
    return out if _optional(v, 2) is None else out + a.get("beta", 1.0) * v[2]


def _reshape(v: Values, a: Attributes) -> Tensor:
    x, shape = v[0], v[1].tolist()
    wanted = shape if a.get("allowzero") else [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return x.reshape(wanted)


def _flatten(v: Values, a: Attributes) -> Tensor:
    axis = a.get("axis", 1) % (v[0].ndim + 1)
    rows = int(torch.Size(v[0].shape[:axis]).numel())
    return v[0].reshape(rows, -1)


def _clip(v: Values, a: Attributes) -> Tensor:
    low, high = _optional(v, 1), _optional(v, 2)
    low, high = a.get("min") if low is None else low, a.get("max") if high is None else high
    return v[0] if low is None and high is None else torch.clamp(v[0], low, high)


def _squeeze(v: Values, a: Attributes) -> Tensor:
    axes = _list(v, 1, a, "axes")
    return v[0].squeeze() if axes is None else v[0].squeeze(tuple(axes))


def _unsqueeze(v: Values, a: Attributes) -> Tensor:
    x, axes = v[0], _list(v, 1, a, "axes") or []
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _reduced(function: Callable[..., Tensor]) -> Operator:
    def reduce(v: Values, a: Attributes) -> Tensor:
        axes = _list(v, 1, a, "axes")
        if axes is None and a.get("noop_with_empty_axes"):
            return v[0]
        return function(v[0], dim=tuple(range(v[0].ndim) if axes is None else axes), keepdim=bool(a.get("keepdims", 1)))

    return reduce


def _pad(v: Values, a: Attributes) -> Tensor:
    pads, value = _list(v, 1, a, "pads") or [], _optional(v, 2)
    if a.get("mode", "constant") != "constant" or _optional(v, 3) is not None:
        raise UnsupportedError(f"Pad with mode {a.get('mode')} or axes")
    return _padded(v[0], {"pads": pads}, float(a.get("value", 0.0) if value is None else value))


def _softmax(function: Callable[..., Tensor], opset: int) -> Operator:
    def soft(v: Values, a: Attributes) -> Tensor:
        x, axis = v[0], a.get("axis", -1 if opset >= 13 else 1)
        if opset < 13:  # then everything from the axis on is one row
            return function(x.flatten(axis), -1).reshape(x.shape)
        return function(x, axis)

    return soft


def _slice(v: Values, a: Attributes) -> Tensor:
    x = v[0]
    starts, ends = _list(v, 1, a, "starts") or [], _list(v, 2, a, "ends") or []
    axes = _list(v, 3, a, "axes") or range(len(starts))
    steps = _list(v, 4, a, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            raise UnsupportedError("Slice with a negative step")
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


def _gather(v: Values, a: Attributes) -> Tensor:
    x, index, axis = v[0], v[1], a.get("axis", 0)
    picked = x.index_select(axis, index.reshape(-1) % x.shape[axis])
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis % x.ndim + 1 :]))


def _constant(v: Values, a: Attributes) -> Any:
    if "value" in a:
        return a["value"]
    name = next((name for name in ("value_float", "value_int", "value_floats", "value_ints") if name in a), None)
    if name is None:
        raise UnsupportedError("Constant of texts")
    kind = torch.float32 if "float" in name else torch.int64
    return torch.tensor(a[name], dtype=kind, device="cpu")


def _cast(v: Values, a: Attributes) -> Tensor:
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64}
    if a["to"] not in kinds:
        raise UnsupportedError("Cast to another type")
    return v[0].to(kinds[a["to"]])


def _div(v: Values, a: Attributes) -> Tensor:
    whole = not v[0].is_floating_point()
    return torch.div(v[0], v[1], rounding_mode="trunc" if whole else None)


def operators(opset: int) -> dict[str, Operator]:
    """Return the function of each operator in this version of the operator set.

    >>> sorted(set(operators(17)) & {"Conv", "Gemm", "If"})
    ['Conv', 'Gemm']
    """
    one = {
        "Abs": torch.abs, "Dropout": lambda x: x, "Erf": torch.erf, "Exp": torch.exp, "Identity": lambda x: x,
        "Log": torch.log, "Neg": torch.neg, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Sqrt": torch.sqrt,
        "Softplus": F.softplus, "Tanh": torch.tanh, "HardSwish": F.hardswish, "Reciprocal": torch.reciprocal,
        "Shape": lambda x: torch.tensor(x.shape, dtype=torch.int64, device="cpu"),
    }  # fmt: skip
    two: dict[str, Operator] = {
        "Add": lambda v, a: v[0] + v[1], "Div": _div, "MatMul": lambda v, a: v[0] @ v[1],
        "Mul": lambda v, a: v[0] * v[1], "Pow": lambda v, a: v[0] ** v[1], "Sub": lambda v, a: v[0] - v[1],
    }  # fmt: skip
    return {
        **{name: _same(function) for name, function in one.items()},
        **two,
        "AveragePool": _average_pool,
        "BatchNormalization": _batch_norm,
        "Cast": _cast,
        "Clip": _clip,
        "Concat": lambda v, a: torch.cat(list(v), a["axis"]),
        "Constant": _constant,
        "Conv": _conv,
        "Elu": lambda v, a: F.elu(v[0], a.get("alpha", 1.0)),
        "Flatten": _flatten,
        "Gather": _gather,
        "Gemm": _gemm,
        "GlobalAveragePool": lambda v, a: v[0].mean(tuple(range(2, v[0].ndim)), keepdim=True),
        "GlobalMaxPool": lambda v, a: v[0].amax(tuple(range(2, v[0].ndim)), keepdim=True),
        "LeakyRelu": lambda v, a: F.leaky_relu(v[0], a.get("alpha", 0.01)),
        "LogSoftmax": _softmax(torch.log_softmax, opset),
        "MaxPool": _max_pool,
        "Pad": _pad,
        "ReduceMean": _reduced(torch.mean),
        "ReduceSum": _reduced(torch.sum),
        "Reshape": _reshape,
        "Slice": _slice,
        "Softmax": _softmax(torch.softmax, opset),
        "Squeeze": _squeeze,
        "Transpose": lambda v, a: v[0].permute(*a.get("perm", range(v[0].ndim)[::-1])),
        "Unsqueeze": _unsqueeze,
    }


class OnnxGraph:
    """The graph of an ONNX model in torch, up to one output; made by `onnx_graph`."""

    def __init__(self, graph: Any, opset: int, output: str, logarithm: bool) -> None:
        helper = framework("onnx", "onnx", "gradients of ONNX models").numpy_helper
        known = operators(opset)
        self.weights = {t.name: torch.from_numpy(helper.to_array(t).copy()) for t in graph.initializer}
        self.input = next(entry.name for entry in graph.input if entry.name not in self.weights)
        self.output, self.steps = output, []
        for node in _needed(graph, output):
            kind = node.op_type
            if kind not in known or node.domain not in ("", "ai.onnx"):
                raise UnsupportedError(f"the operator {kind} is not translated")
            if logarithm and kind == "Softmax" and output in node.output:
                # The logarithm of a softmax that is computed before vanishes where the model is sure.
                kind, logarithm = "LogSoftmax", False
            attributes = {a.name: _attribute(a, helper) for a in node.attribute}
            self.steps.append((known[kind], list(node.input), list(node.output), attributes))
        self.logarithm = logarithm

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of inputs on the CPU."""
        values: dict[str, Any] = {"": None, self.input: x, **self.weights}
        for function, inputs, outputs, attributes in self.steps:
            # Only the first output: the others are masks and counts.
            values[outputs[0]] = function([values[name] for name in inputs], attributes)
        logits: Tensor = values[self.output]
        return logits.clamp(min=FLOOR).log() if self.logarithm else logits


def _needed(graph: Any, output: str) -> list[Any]:
    """Return the nodes that the output depends on, in the order of the graph."""
    wanted, kept = {output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _attribute(attribute: Any, helper: Any) -> Any:
    onnx = framework("onnx", "onnx", "gradients of ONNX models")
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return torch.from_numpy(helper.to_array(value).copy())
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def onnx_graph(content: bytes, output: str, logarithm: bool = False) -> OnnxGraph:
    """Return an ONNX model in torch; raise an UnsupportedError that names what is not translated.

    `logarithm` says that the output holds probabilities; the graph returns their logarithm.
    """
    model = framework("onnx", "onnx", "gradients of ONNX models").load_model_from_string(content)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    return OnnxGraph(model.graph, opset, output, logarithm)
