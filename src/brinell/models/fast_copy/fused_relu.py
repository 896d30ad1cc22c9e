"""Fuse convolution, batch normalisation and ReLU into one kernel; the normalisation is folded into the weights.

Each separate layer reads and writes all activations. Fused into the convolution, a ReLU is almost free; as a separate
layer it takes a tenth of the forward pass of a residual network.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from brinell.models.fast_copy.inference_copy import CHANNELS

# Tolerance for logits and gradients of the same function: rounding, and ReLUs that switch because of it.
TOLERANCE = 1e-3
# Functions that compute a ReLU.
RELUS = (F.relu, torch.relu, F.relu_, torch.relu_)


# Written out, because torch before 2.6 cannot infer it from list[int].
SCHEMA = (
    "(Tensor x, Tensor weight, Tensor bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups)"
    " -> Tensor"
)


@torch.library.custom_op("brinell::convolution_relu", mutates_args=(), schema=SCHEMA)
def convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Return the ReLU of a convolution, computed by one kernel on a GPU and by two elsewhere."""
    if x.is_cuda:
        fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
        return fused
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()


@convolution_relu.register_fake
def _fake(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.settings = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient of the input only, because the weights are frozen."""
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.settings
    before_relu = torch.where(output > 0, grad, torch.zeros_like(grad))
    grads = torch.ops.aten.convolution_backward(
        before_relu, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )
    return grads[0], None, None, None, None, None, None


convolution_relu.register_autograd(_backward, setup_context=_save)


class ConvolutionRelu(nn.Module):
    """A frozen convolution with an optional batch normalisation and a ReLU."""

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
        self.settings = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        out: Tensor = convolution_relu(x.to(weight.dtype), weight, self.bias, *self.settings)
        return out


def fuse_relus(module: nn.Module) -> nn.Module:
    """Return a traced copy of a frozen network in which each convolution is fused with the ReLU that follows.

    Raises an error if nothing can be fused or the network cannot be traced: its control flow depends on values, or it
    has forward hooks on the whole network or backward hooks anywhere. While torch.fx traces, calls of any module in
    other threads fail.
    """
    if module._forward_hooks or module._forward_pre_hooks or any(map(_has_backward_hooks, module.modules())):
        raise ValueError("the network has hooks, which a traced copy would lose")
    graph = fx.Tracer().trace(module)
    modules = dict(module.named_modules())
    made = fx.GraphModule(module, graph)
    fused = 0
    for relu in list(made.graph.nodes):
        if not _is_relu(relu, modules):
            continue
        before = relu.args[0]
        norm = _single_use(before, modules, nn.BatchNorm2d)
        conv = _single_use(before if norm is None else before.args[0], modules, nn.Conv2d)
        if conv is None or not _foldable(conv, norm):
            continue
        source = before if norm is None else before.args[0]
        fused += 1
        name = f"{'_' * _underscores(modules)}fused_{fused}"  # a name that no module has
        made.add_submodule(name, ConvolutionRelu(conv, norm))
        # At the position of the convolution: its input may be overwritten later.
        with made.graph.inserting_before(source):
            relu.replace_all_uses_with(made.graph.call_module(name, source.args))
        for node in dict.fromkeys((relu, before, source)):
            made.graph.erase_node(node)
    if not fused:
        raise ValueError("no convolution is followed by a ReLU")
    made.graph.lint()
    made.recompile()
    made.delete_all_unused_submodules()
    return made


def same_function(new: nn.Module, old: nn.Module, x: Tensor) -> bool:
    """Return whether `new` and `old` have equal logits and gradients at x up to rounding, and `old` is deterministic.

    A traced copy may lose custom gradients and freeze random numbers.
    """
    (first, old_grad), (again, _), (z, grad) = (_logits_and_gradient(net, x) for net in (old, old, new))
    if not torch.equal(first, again):
        return False
    grad, old_grad = grad.flatten(1), old_grad.flatten(1)
    same_logits = (z - first).abs().amax() <= TOLERANCE * (first.amax() - first.amin())
    cosine = torch.cosine_similarity(grad.double(), old_grad.double(), 1, eps=0)
    # A zero gradient has no direction: both must be zero.
    both_zero = (grad == 0).all(1) & (old_grad == 0).all(1)
    same_norm = (grad.norm(dim=1) - old_grad.norm(dim=1)).abs() <= TOLERANCE * old_grad.norm(dim=1)
    return bool(same_logits & (both_zero | ((cosine >= 1 - TOLERANCE) & same_norm)).all())


def _logits_and_gradient(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits at x, and the gradient at x of a fixed weighted sum of each row of logits."""
    point = x.detach().clone().requires_grad_()
    # In the network's own precision, even if the caller uses autocast.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        raw = net(point)
        z: Tensor = (raw[0] if isinstance(raw, tuple | list) else raw).flatten(1)
        weights = torch.linspace(-1, 1, z.shape[1], dtype=z.dtype, device=z.device).cos()
        return z.detach(), torch.autograd.grad((z * weights).sum(), point)[0]


def _underscores(modules: dict[str, nn.Module]) -> int:
    """Return a number n such that no module's name begins with n underscores, for the prefix of a new name."""
    return 1 + max(len(name) - len(name.lstrip("_")) for name in modules)


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if len(node.args) < 1 or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU and _unmodified(modules[str(node.target)])
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in RELUS


def _single_use(node: Any, modules: dict[str, nn.Module], kind: type[nn.Module]) -> Any:
    """Return the module that a node calls if the module's type is `kind` and its output is used once, else None."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.users) != 1 or len(node.args) != 1:
        return None
    module = modules[str(node.target)]
    return module if type(module) is kind and _unmodified(module) else None


def _unmodified(module: nn.Module) -> bool:
    """Return whether a module has no hooks, no parametrizations and no `forward` set on the instance."""
    hooks = module._forward_hooks or module._forward_pre_hooks or _has_backward_hooks(module)
    return not (hooks or hasattr(module, "parametrizations") or "forward" in vars(module))


def _has_backward_hooks(module: nn.Module) -> bool:
    return bool(module._backward_hooks or module._backward_pre_hooks)


def _foldable(conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> bool:
    fixed = norm is None or (not norm.training and norm.running_mean is not None)
    # Other convolutions are padded with zero channels, which gains more.
    full = conv.groups > 1 or conv.in_channels % CHANNELS == 0
    return fixed and full and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
