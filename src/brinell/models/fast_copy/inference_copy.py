"""Make a frozen inference copy of a module: channels-last, weights optionally cast to bfloat16."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# Layers that autocast runs in lower precision, including their weights.
CAST_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Tensor cores read this many 16-bit channels at a time. Images with three channels take a slow path.
CHANNELS = 8


class Padded(nn.Module):
    """A convolution whose input is padded with zero channels and whose weights for these channels are zero."""

    def __init__(self, conv: nn.Conv2d, more: int) -> None:
        super().__init__()
        self.conv, self.more = conv, more
        conv.weight = nn.Parameter(pad(conv.weight, (0, 0, 0, 0, 0, more)), requires_grad=False)
        conv.in_channels += more

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(pad(x, (0, 0, 0, 0, 0, self.more)))
        return out


def inference_copy(module: nn.Module, dtype: torch.dtype | None = None, check_on: Tensor | None = None) -> nn.Module:
    """Return a frozen copy of a module with weights in `dtype`, so that autocast need not cast them on every call.

    If inputs `check_on` are given, each convolution is fused with the ReLU that follows. Raises ValueError if the fused
    copy has other outputs on these inputs.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    >>> made = inference_copy(net, torch.bfloat16)
    >>> next(made.parameters()).dtype, net[0].weight.dtype, net[0].in_channels
    (torch.bfloat16, torch.float32, 3)
    """
    made: Any = copy.deepcopy(module).requires_grad_(False)
    cast_layers: tuple[type[nn.Module], ...] = CAST_LAYERS
    if check_on is not None:
        from brinell.models.fast_copy.fused_relu import ConvolutionRelu, fuse_relus, same_function

        # Compare on the CPU in full precision: device kernels and lower precision are not in question here.
        original: Any = copy.deepcopy(module).requires_grad_(False).cpu()
        made, cast_layers = fuse_relus(made), (*CAST_LAYERS, ConvolutionRelu)
        if not same_function(copy.deepcopy(made).cpu(), original, check_on.cpu()):
            raise ValueError("the traced graph does not compute the same function as the network")
    if dtype is not None:
        # Other layers, and layers with computed weights, may use their weights outside of products.
        for layer in [p for p in made.modules() if type(p) in cast_layers and not hasattr(p, "parametrizations")]:
            layer.to(dtype)
        _pad_channels(made)
    channels_last: nn.Module = made.to(memory_format=torch.channels_last)
    return channels_last


def _pad_channels(module: nn.Module) -> None:
    padded: dict[nn.Module, Padded] = {}  # a layer may be used in several places
    for parent in list(module.modules()):
        for name, layer in list(parent._modules.items()):
            if type(layer) is nn.Conv2d and layer.groups == 1 and not hasattr(layer, "parametrizations"):
                more = -layer.in_channels % CHANNELS
                if layer not in padded and more:
                    padded[layer] = Padded(layer, more)
                if layer in padded:
                    setattr(parent, name, padded[layer])
