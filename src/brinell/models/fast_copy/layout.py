"""A module laid out for an accelerator: frozen, filters in the order it likes, weights in its own kind of numbers."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# Layers that autocast computes in lower precision, weights and all.
PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Tensor cores read so many 16-bit channels at a time; an image's three make them take a slow way around.
CHANNELS = 8


class Padded(nn.Module):
    """A convolution that sees channels of zeros behind those it has, and has weights of zero for them."""

    def __init__(self, conv: nn.Conv2d, more: int) -> None:
        super().__init__()
        self.conv, self.more = conv, more
        conv.weight = nn.Parameter(pad(conv.weight, (0, 0, 0, 0, 0, more)), requires_grad=False)
        conv.in_channels += more

    def forward(self, x: Tensor) -> Tensor:
        """The same as without."""
        out: Tensor = self.conv(pad(x, (0, 0, 0, 0, 0, self.more)))
        return out


def laid_out(module: nn.Module, kept: torch.dtype | None = None, tried_on: Tensor | None = None) -> nn.Module:
    """A frozen copy; `kept` is how the weights of products are kept, those that autocast would convert at every call.

    With some inputs to try it on, convolutions take over what follows them where they can; raises where that is not
    the same function of them.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    >>> [str(v.dtype) for v in laid_out(net, torch.bfloat16).parameters()][:1], net[0].weight.dtype, net[0].in_channels
    (['torch.bfloat16'], torch.float32, 3)
    """
    made: Any = copy.deepcopy(module).requires_grad_(False)
    products: tuple[type[nn.Module], ...] = PRODUCTS
    if tried_on is not None:
        from brinell.models.fast_copy.fused_relu import ConvolutionRelu, same_function, with_epilogues

        # On the processor and as it is: kernels of a device, and less precision, are not what is in question.
        before: Any = copy.deepcopy(module).requires_grad_(False).cpu()
        made, products = with_epilogues(made), (*PRODUCTS, ConvolutionRelu)
        if not same_function(copy.deepcopy(made).cpu(), before, tried_on.cpu()):
            raise ValueError("the network read as a graph is not the network")
    if kept is not None:
        # A layer of another kind, or one whose weights are computed, may use them for something else.
        for part in [p for p in made.modules() if type(p) in products and not hasattr(p, "parametrizations")]:
            part.to(kept)
        _fill_channels(made)
    laid: nn.Module = made.to(memory_format=torch.channels_last)
    return laid


def _fill_channels(module: nn.Module) -> None:
    padded: dict[nn.Module, Padded] = {}  # a layer may be used in several places
    for parent in list(module.modules()):
        for name, part in list(parent._modules.items()):
            if type(part) is nn.Conv2d and part.groups == 1 and not hasattr(part, "parametrizations"):
                more = -part.in_channels % CHANNELS
                if part not in padded and more:
                    padded[part] = Padded(part, more)
                if part in padded:
                    setattr(parent, name, padded[part])
