"""Trace a classifier with torch.fx into a `TracedNetwork` of operations that have bounds."""

import inspect
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from brinell.certification.network import Builder, TracedNetwork, Value
from brinell.certification.operations import Concatenation, Reshape, Scale
from brinell.certification.translate import FUNCTIONS, METHODS, MODULES
from brinell.core.model import Classifier
from brinell.errors import ModelError, error_text
from brinell.models.wrap import TorchClassifier

# Operations whose result may share memory with their input, and functions that write into it.
VIEWS = {
    "flatten", "reshape", "view", "squeeze", "unsqueeze", "permute", "transpose", "getitem", "contiguous", "float",
    "detach", "dropout", "Flatten", "Unflatten", "Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
}  # fmt: skip
WRITING = {operator.iadd, operator.isub, operator.imul, operator.itruediv}
SUPPORTED = (
    "linear, convolution, batch normalisation, ReLU, leaky ReLU, ReLU6, tanh, sigmoid, GELU, SiLU, average and max "
    "pooling, flatten, reshape, mean, addition, concatenation, arithmetic with constants"
)


def unsupported(what: str, why: str, remedy: str = "") -> ModelError:
    """Return the error about a part of a network that has no bounds."""
    return ModelError(
        expected=f"a network of operations that have bounds ({SUPPORTED})",
        got=f"{what}: {why}",
        remedy=remedy or "Write this part with supported operations, or certify with randomised smoothing.",
    )


def trace(model: Classifier | nn.Module, shape: tuple[int, ...]) -> TracedNetwork:
    """Return the network of a classifier or a module for samples of this shape.

    Raise a ModelError that names the first part without bounds.
    """
    module, device = _module(model)
    if kind(module) in MODULES:
        module = nn.Sequential(module).eval()
    builder = Builder(shape, device)
    start = Value(0, (1, *shape))
    if isinstance(model, TorchClassifier):
        start = _normalised(builder, start, model)
    before = random_states(device)
    with torch.no_grad():
        graph = _graph(module)
        _require_no_stale_values(graph, module)
        out = _run(builder, graph, module, start)
        _finish(builder, out)
    if random_states(device) != before:
        raise unsupported(kind(module).__name__, "it draws random numbers", "Certify a network without randomness.")
    return TracedNetwork(tuple(builder.nodes))


def random_states(device: torch.device) -> list[object]:
    """Return the states of the generators of random numbers: a network that draws has changed one of them."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return [random.getstate(), *(state.tolist() for state in states)]


def _module(model: Classifier | nn.Module) -> tuple[nn.Module, torch.device]:
    module = model if isinstance(model, nn.Module) else model.torch_module
    if module is None:
        raise unsupported(type(model).__name__, "it has no torch module", "Wrap a torch module: brinell.wrap(net).")
    if isinstance(model, TorchClassifier) and model.detector is not None:
        raise unsupported(type(model).__name__, "it has a detector", "Certify the classifier without its detector.")
    _require_plain_modules(module)
    tensors = [*module.parameters(), *module.buffers()]
    low = [t for t in tensors if t.is_floating_point() and t.dtype not in (torch.float32, torch.float64)]
    if low:
        raise unsupported("weights", f"they are in {low[0].dtype}", "Convert the model to float32: net.float().")
    return module, tensors[0].device if tensors else torch.device("cpu")


def _require_plain_modules(module: nn.Module) -> None:
    """Refuse modules that compute something else than their type says."""
    for name, m in module.named_modules():
        name = name or type(m).__name__
        if m.training:
            raise unsupported(name, "it is in train mode", "Call net.eval() first.")
        if m._forward_hooks or m._forward_pre_hooks:
            remedy = "Remove the hook (of weight_norm: torch.nn.utils.remove_weight_norm), or write it as a module."
            raise unsupported(name, "it has a forward hook, which torch.fx does not see", remedy)
        if "forward" in vars(m):
            raise unsupported(name, "its forward was replaced", "Write the change as a module of its own.")


def _normalised(builder: Builder, x: Value, model: TorchClassifier) -> Value:
    """Append the normalisation of a wrapped classifier."""
    if model.mean is None and model.std is None:
        return x
    shape = (-1, *[1] * (len(x.shape) - 2))
    mean = builder.constant(0.0 if model.mean is None else model.mean).reshape(shape)
    std = builder.constant(1.0 if model.std is None else model.std).reshape(shape)
    return builder.add(Scale(1 / std, -mean / std, 3), x, name="normalisation")


def _graph(module: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(module)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        remedy = "Write the forward method without branches that depend on values, so that torch.fx can trace it."
        raise unsupported(type(module).__name__, f"torch.fx cannot trace it ({error_text(error)})", remedy) from error


class _Tracer(fx.Tracer):
    """Trace into modules of the user; a module with a translation is one step."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return kind(m) in MODULES or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Proxy(fx.Proxy):
    """A value that records `x += y` as writing into x; torch.fx records an addition."""

    def _written(self, function: Callable[..., Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._written(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._written(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._written(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._written(operator.itruediv, other)


def kind(m: nn.Module) -> type[nn.Module]:
    """Return the type of a module; of one whose weights are parametrised, the type that it had before."""
    return type(m).__mro__[1] if parametrize.is_parametrized(m) else type(m)


def _require_no_stale_values(graph: fx.Graph, module: nn.Module) -> None:
    """Refuse an operation that writes into a value which is read again later: the graph shows the value before."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    owner: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        submodule = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        writes = _writes(node, submodule)
        shares = writes or getattr(submodule or node.target, "__name__", _word(node, submodule)) in VIEWS
        first = node.all_input_nodes[0] if node.all_input_nodes else None
        owner[node] = owner[first] if shares and first is not None else node
        same = [n for n, o in owner.items() if o is owner[node] and n is not node]
        if writes and any(order[user] > order[node] for n in same for user in n.users):
            remedy = "Write it without inplace=True, or as x = x + y instead of x += y."
            raise unsupported(_described(node, submodule), "it changes a value that is read again later", remedy)


def _word(node: fx.Node, submodule: nn.Module | None) -> str:
    return str(node.target) if submodule is None else kind(submodule).__name__


def _writes(node: fx.Node, submodule: nn.Module | None) -> bool:
    """Return whether a call writes into its first argument."""
    if submodule is not None:
        return bool(getattr(submodule, "inplace", False)) and "Dropout" not in kind(submodule).__name__
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function":
        return False
    translation = FUNCTIONS.get(node.target)
    if translation is None or node.target in WRITING:
        return translation is not None
    try:
        given = inspect.signature(translation).bind(None, *node.args, **node.kwargs).arguments
    except TypeError:
        return False
    return bool(given.get("inplace", False)) and translation is not FUNCTIONS[nn.functional.dropout]


def _run(builder: Builder, graph: fx.Graph, module: nn.Module, start: Value) -> Any:
    """Translate the graph node by node; return what it returns."""
    known: dict[fx.Node, Any] = {}
    placeholders = 0
    for node in graph.nodes:
        args = fx.map_arg(node.args, lambda n: known[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: known[n])
        if node.op == "placeholder":
            known[node] = start if placeholders == 0 else next(iter(node.args), None)
            placeholders += 1
        elif node.op == "output":
            return args[0]
        elif node.op == "get_attr":
            known[node] = operator.attrgetter(str(node.target))(module)
        else:
            known[node] = _call(builder, module, node, args, kwargs)
    raise unsupported(type(module).__name__, "it returns nothing")


def _call(builder: Builder, module: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Translate one call; a call with constants only is computed."""
    submodule = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not _has_value((args, kwargs)):
        return _computed(node, submodule, args, kwargs)
    translation = _translation(node, submodule)
    if translation is None:
        raise unsupported(_described(node, submodule), "it has no bounds")
    try:
        given = (submodule, *args) if submodule is not None else args
        return translation(builder, *given, **kwargs)
    except NotImplementedError as reason:
        raise unsupported(_described(node, submodule), str(reason)) from None
    except TypeError as error:
        raise unsupported(_described(node, submodule), f"these options have no bounds ({error})") from None


def _described(node: fx.Node, submodule: nn.Module | None) -> str:
    if submodule is not None:
        return f"the module {node.target} ({type(submodule).__name__})"
    return f"the call of {getattr(node.target, '__name__', node.target)}"


def _translation(node: fx.Node, submodule: nn.Module | None) -> Callable[..., Any] | None:
    if submodule is not None:
        return MODULES.get(kind(submodule))
    return METHODS.get(str(node.target)) if node.op == "call_method" else FUNCTIONS.get(node.target)


def _has_value(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    return any(map(_has_value, value)) if isinstance(value, list | tuple) else isinstance(value, Value)


def _computed(node: fx.Node, submodule: nn.Module | None, args: Any, kwargs: Any) -> Any:
    if submodule is not None:
        return submodule(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _finish(builder: Builder, out: Any) -> None:
    """Make the last node the logits, one row of at least two."""
    if isinstance(out, tuple | list) and out:
        out = out[0]
    if not isinstance(out, Value):
        raise unsupported("the output", "it does not depend on the input")
    if len(out.shape) == 1 or out.shape[1:] == (1,):
        # A single logit z stands for the two logits (0, z).
        out = _two_logits(builder, out)
    if len(out.shape) != 2:
        raise unsupported("the output", f"its shape is {out.shape}, not (batch, classes)")
    if out.at != len(builder.nodes) - 1:
        builder.add(Scale(builder.constant(1.0), None, 0), out, name="logits")


def _two_logits(builder: Builder, out: Value) -> Value:
    column = builder.add(Reshape((1,)), out)
    zero = builder.add(Scale(builder.constant(0.0), None, 0), column)
    return builder.add(Concatenation(1), zero, column)
