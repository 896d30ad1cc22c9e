"""Initial weights from a seed and the parameters' names alone."""

import math

import torch
from torch import Tensor, nn

from brinell.ops import rng

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


def drawn(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers for the parameter of that name."""
    key = rng.fold(rng.keys(seed, torch.zeros(1, dtype=torch.long)), rng.digest(f"weights {name}"))
    return rng.normal(key, shape)[0]


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """He initialisation of linear and convolutional layers, zero biases; normalisations as new.

    Method: weights are normal with variance 2 / fan-in. Parameters of other layers stay as they are. Reference: He et
    al. 2015, Delving deep into rectifiers.

    >>> net = nn.Linear(3, 2)
    >>> initialise(net, seed=0)
    >>> net.bias.tolist()
    [0.0, 0.0]
    """
    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            fan = math.prod(layer.weight.shape[1:])
            layer.weight.copy_(drawn(seed, f"{name}.weight", tuple(layer.weight.shape)) * math.sqrt(2 / fan))
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, NORMS):
            layer.reset_parameters()
