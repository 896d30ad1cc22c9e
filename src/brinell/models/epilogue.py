"""Convolutions that end in their own rectifier, with the normalisation between the two folded into the weights.

Every layer by itself reads and writes all of its activations. What follows a convolution directly costs next to nothing
inside it, and a tenth of a residual network's forward pass outside.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from brinell.models.layout import CHANNELS

# What a rectifier may look like in a network.
RECTIFIERS = (F.relu, torch.relu, F.relu_, torch.relu_)


@torch.library.custom_op("brinell::convolution_relu", mutates_args=())
def convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """A convolution and its rectifier: one kernel on a GPU, two elsewhere."""
    if x.is_cuda:
        fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
        return fused
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()


@convolution_relu.register_fake
def _shaped(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.how = inputs
    ctx.save_for_backward(x, weight, output)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the input alone: the weights are frozen."""
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.how
    stopped = torch.where(output > 0, grad, torch.zeros_like(grad))
    back = torch.ops.aten.convolution_backward(
        stopped, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )
    return back[0], None, None, None, None, None, None


convolution_relu.register_autograd(_back, setup_context=_keep)


class ConvolutionRelu(nn.Module):
    """A frozen convolution with what followed it: perhaps a batch normalisation, and a rectifier."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> None:
        super().__init__()
        weight, bias = conv.weight.detach(), conv.bias
        bias = torch.zeros_like(weight[:, 0, 0, 0]) if bias is None else bias.detach()
        if norm is not None:
            assert norm.running_mean is not None and norm.running_var is not None
            scale = (norm.running_var + norm.eps).rsqrt()
            if norm.weight is not None:
                scale = scale * norm.weight.detach()
            weight, bias = weight * scale[:, None, None, None], (bias - norm.running_mean) * scale
            if norm.bias is not None:
                bias = bias + norm.bias.detach()
        self.register_buffer("weight", weight.clone())
        self.register_buffer("bias", bias.clone())
        self.how = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)

    def forward(self, x: Tensor) -> Tensor:
        """The rectified answer, in the kind of numbers the weights are kept in."""
        weight: Any = self.weight
        made: Tensor = convolution_relu(x.to(weight.dtype), weight, self.bias, *self.how)
        return made


def with_epilogues(module: nn.Module) -> nn.Module:
    """The frozen network, read as a graph, with such convolutions where it has the parts for them.

    Raises where it cannot be read so, because what it does depends on the values that pass.
    """
    graph = fx.Tracer().trace(module)
    parts = dict(module.named_modules())
    made = fx.GraphModule(module, graph)
    for end in list(made.graph.nodes):
        if not _rectifies(end, parts):
            continue
        before = end.args[0]
        norm = _only(before, parts, nn.BatchNorm2d)
        conv = _only(before if norm is None else before.args[0], parts, nn.Conv2d)
        if conv is None or not _foldable(conv, norm):
            continue
        source = before if norm is None else before.args[0]
        name = f"{source.name}_{end.name}"  # names of nodes are unique; a module may be used in several places
        made.add_submodule(name, ConvolutionRelu(conv, norm))
        with made.graph.inserting_before(end):
            end.replace_all_uses_with(made.graph.call_module(name, source.args))
        for gone in dict.fromkeys((end, before, source)):
            if not gone.users:
                made.graph.erase_node(gone)
    made.graph.lint()
    made.recompile()
    made.delete_all_unused_submodules()
    return made


def _rectifies(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    if len(node.args) < 1 or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return type(parts[str(node.target)]) is nn.ReLU and _plain(parts[str(node.target)])
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in RECTIFIERS


def _only(node: Any, parts: dict[str, nn.Module], kind: type[nn.Module]) -> Any:
    """The module of this very kind that made the node for one reader alone, else none."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.users) != 1 or len(node.args) != 1:
        return None
    part = parts[str(node.target)]
    return part if type(part) is kind and _plain(part) else None


def _plain(part: nn.Module) -> bool:
    """Nobody listens at the module's door or changes what goes through."""
    return not (part._forward_hooks or part._forward_pre_hooks or hasattr(part, "parametrizations"))


def _foldable(conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> bool:
    still = norm is None or (not norm.training and norm.running_mean is not None)
    # Others get channels of zeros, which pays more.
    whole = conv.groups > 1 or conv.in_channels % CHANNELS == 0
    return still and whole and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
