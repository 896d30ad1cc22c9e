"""What a model's passes cost: operations and memory per input, counted in one small forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from brinell.core.model import Classifier
from brinell.cost.pilot import preserve_rng

# Rows of the pass that counts.
ROWS = 2
# Products of two tensors, and those that add a third one, their first argument.
BIASED = ("addmm", "baddbmm")
PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", *BIASED)


@dataclass(frozen=True)
class ModelCost:
    """The cost of one input: operations (multiplications and additions) of a forward pass, bytes that it keeps for the
    backward pass, and the number of layers. None where it could not be counted.

    >>> from torch import nn
    >>> from brinell.models.wrap import wrap
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> model_cost(wrap(net.eval()), (3, 2, 2)).operations == 2 * (12 * 4 + 4 * 2)
    True
    """

    operations: float | None = None
    memory: float | None = None
    layers: int = 0


def model_cost(classifier: Classifier, shape: tuple[int, ...]) -> ModelCost:
    """Return the cost of the classifier on inputs of this shape; what cannot be counted is None.

    Cost: one forward pass on two inputs of zeros, in float32. A model that fails here is refused by the checks; one in
    train mode, which a pass may change, is not called.
    """
    module = classifier.torch_module
    if module is None or not classifier.differentiable or classifier.modes():
        return ModelCost()
    counter, kept = OperationCounter(), dict[int, int]()
    point = torch.zeros((ROWS, *shape), dtype=torch.float32, device=classifier.device).requires_grad_(True)

    def keep(value: Tensor) -> Tensor:
        kept[value.data_ptr()] = value.nbytes
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value)
    try:
        with preserve_rng(point.device), torch.enable_grad(), hooks, counter:
            classifier.forward(point)
    except Exception:  # the user's model may raise anything
        return ModelCost()
    weights = sum(w.nbytes for w in (*module.parameters(), *module.buffers()) if w.data_ptr() in kept)
    layers = sum(not list(m.children()) for m in module.modules())
    memory = max(sum(kept.values()) - weights, 0) / ROWS
    return ModelCost(counter.operations / ROWS or None, memory or None, layers)


class OperationCounter(TorchFunctionMode):
    """Count the operations of convolutions, linear layers, products and attention while it is active.

    >>> with OperationCounter() as counter:
    ...     _ = torch.nn.functional.linear(torch.zeros(3, 5), torch.zeros(2, 5))
    >>> counter.operations
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 2 * _multiplications(getattr(func, "__name__", ""), args, out)
        return out


def _multiplications(name: str, args: tuple[Any, ...], out: Any) -> int:
    out = out[0] if isinstance(out, tuple) and out else out
    if not isinstance(out, Tensor) or len(args) < 2 or not all(isinstance(v, Tensor) for v in args[:2]):
        return 0
    first, second = args[:2]
    if name.startswith("conv_transpose"):
        return first.numel() * second[0].numel()
    if name.startswith("conv"):
        return out.numel() * second[0].numel()
    if name == "scaled_dot_product_attention":
        return 2 * out.numel() * second.shape[-2]
    if name == "multi_head_attention_forward":
        # Four projections, and products of all queries with all keys and values; its parts are not seen one by one.
        return first.numel() * (4 * first.shape[-1] + 2 * second.shape[0])
    if name == "linear" or name in PRODUCTS:
        left = second if name in BIASED else first
        return out.numel() * left.shape[-1]
    return 0
