"""Convolutions that end in their own rectifier, with the normalisation between the two folded into the weights.

Every layer by itself reads and writes all of its activations. What follows a convolution directly costs next to nothing
inside it, and a tenth of a residual network's forward pass outside.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from brinell.models.fast_copy.layout import CHANNELS

# How far answers and gradients of the same function may be apart: rounding, and a rectifier that it turns over.
CLOSE = 1e-3
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

    Raises where it has none, and where it cannot be read so: because what it does depends on the values that pass, or
    because somebody listens to the whole of it or to a way back. Reading makes other threads' modules fail meanwhile.
    """
    if module._forward_hooks or module._forward_pre_hooks or any(map(_listens_back, module.modules())):
        raise ValueError("the network is listened to")
    graph = fx.Tracer().trace(module)
    parts = dict(module.named_modules())
    made = fx.GraphModule(module, graph)
    taken = 0
    for end in list(made.graph.nodes):
        if not _rectifies(end, parts):
            continue
        before = end.args[0]
        norm = _only(before, parts, nn.BatchNorm2d)
        conv = _only(before if norm is None else before.args[0], parts, nn.Conv2d)
        if conv is None or not _foldable(conv, norm):
            continue
        source = before if norm is None else before.args[0]
        taken += 1
        name = f"{'_' * _longest(parts)}epilogue_{taken}"  # that no module has
        made.add_submodule(name, ConvolutionRelu(conv, norm))
        # Where the convolution stood: what it reads may be written to afterwards.
        with made.graph.inserting_before(source):
            end.replace_all_uses_with(made.graph.call_module(name, source.args))
        for gone in dict.fromkeys((end, before, source)):
            made.graph.erase_node(gone)
    if not taken:
        raise ValueError("no convolution with a rectifier after it")
    made.graph.lint()
    made.recompile()
    made.delete_all_unused_submodules()
    return made


def same_function(new: nn.Module, old: nn.Module, x: Tensor) -> bool:
    """Whether two networks answer alike to these inputs, gradients included, and the old one always the same.

    Reading a network as a graph keeps its values and may lose its ways back (those of functions with a gradient of
    their own) and its chances (numbers drawn while it was read).
    """
    answers = [_answer(net, x) for net in (old, old, new)]
    (first, slope), (again, _), (z, g) = answers
    if not torch.equal(first, again):
        return False
    close = (z - first).abs().amax() <= CLOSE * (first.amax() - first.amin())
    along = torch.cosine_similarity(g.flatten(1).double(), slope.flatten(1).double(), 1, eps=0)
    # A gradient of zero has no direction: both must have none.
    still = (g.flatten(1) == 0).all(1) & (slope.flatten(1) == 0).all(1)
    size = (g.flatten(1).norm(dim=1) - slope.flatten(1).norm(dim=1)).abs() <= CLOSE * slope.flatten(1).norm(dim=1)
    return bool(close & (still | ((along >= 1 - CLOSE) & size)).all())


def _answer(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and the gradient of a weighted sum of each row's."""
    point = x.detach().clone().requires_grad_()
    # As precisely as the network itself: whoever asks may be about to answer in less.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        raw = net(point)
        z: Tensor = (raw[0] if isinstance(raw, tuple | list) else raw).flatten(1)
        weights = torch.linspace(-1, 1, z.shape[1], dtype=z.dtype, device=z.device).cos()
        return z.detach(), torch.autograd.grad((z * weights).sum(), point)[0]


def _longest(parts: dict[str, nn.Module]) -> int:
    """One more than any name begins with underscores."""
    return 1 + max(len(name) - len(name.lstrip("_")) for name in parts)


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
    heard = part._forward_hooks or part._forward_pre_hooks or _listens_back(part)
    return not (heard or hasattr(part, "parametrizations") or "forward" in vars(part))


def _listens_back(part: nn.Module) -> bool:
    return bool(part._backward_hooks or part._backward_pre_hooks)


def _foldable(conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> bool:
    still = norm is None or (not norm.training and norm.running_mean is not None)
    # Others get channels of zeros, which pays more.
    whole = conv.groups > 1 or conv.in_channels % CHANNELS == 0
    return still and whole and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
