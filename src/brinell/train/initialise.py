"""Initial weights from a seed and the parameters' names alone."""

import math

import torch
from torch import Tensor, nn

from brinell.ops import rng

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


def drawn(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [−1, 1) for the parameter of that name."""
    key = rng.fold(rng.keys(seed, torch.zeros(1, dtype=torch.long)), rng.digest(f"weights {name}"))
    return 2 * rng.uniform(key, shape)[0] - 1


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Torch's own distribution for linear and convolutional layers, drawn from the seed; normalisations as new.

    Method: weights are uniform within 1 / √fan-in, biases zero. In front of a normalisation the weights' size sets the
    pace of learning, lr / ‖w‖²: published learning rates are made for this one. Parameters of other layers stay as they
    are.

    >>> net = nn.Linear(3, 2)
    >>> initialise(net, seed=0)
    >>> net.bias.tolist()
    [0.0, 0.0]
    """
    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            fan = math.prod(layer.weight.shape[1:])
            layer.weight.copy_(drawn(seed, f"{name}.weight", tuple(layer.weight.shape)) / math.sqrt(fan))
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, NORMS):
            layer.reset_parameters()
