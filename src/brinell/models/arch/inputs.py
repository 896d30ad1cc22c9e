"""What a network does with its input first: nothing, or a normalisation of images in [0, 1]."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Inputs", "NormalizedNetwork", "inputs_from"]


@dataclass(frozen=True)
class Inputs:
    """Normalisation as data.

    With `stored` the numbers are buffers mu and sigma of the checkpoint, with `flat` of shape (3, 1, 1) instead of
    (1, 3, 1, 1); `per_image` takes each image's own mean and deviation.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    stored: bool = False
    flat: bool = False
    per_image: bool = False


def inputs_from(config: Mapping[str, Any] | None) -> Inputs:
    """The normalisation of a card.

    >>> inputs_from({"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}).mean
    (0.5, 0.5, 0.5)
    """
    numbers: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in (config or {}).items()}
    return Inputs(**numbers)


class NormalizedNetwork(nn.Module):
    """Base of the networks: `normalised` is the input as the network was trained to see it."""

    mu: Tensor
    sigma: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        if inputs.mean is not None and inputs.std is not None:
            shape = (-1, 1, 1) if inputs.flat else (1, -1, 1, 1)
            for name, values in (("mu", inputs.mean), ("sigma", inputs.std)):
                # On the CPU even where parameters are made without memory: checkpoints may lack these.
                column = torch.tensor(values, device="cpu").view(shape)
                self.register_buffer(name, column, persistent=inputs.stored)

    def extra_repr(self) -> str:
        """Tells the normalisation, so that it is part of a model's fingerprint."""
        return str(self.inputs)

    def normalised(self, x: Tensor) -> Tensor:
        """The input, normalised as declared."""
        if self.inputs.per_image:
            return _standardised(x)
        return x if self.inputs.mean is None else (x - self.mu) / self.sigma


def _standardised(x: Tensor) -> Tensor:
    """Each image with mean 0 and deviation 1; a flat one is not blown up.

    Reference: Ding et al. 2020, MMA training: the deviation is at least one over the root of the number of values.
    """
    over = tuple(range(1, x.ndim))
    floor = x[0].numel() ** -0.5
    return (x - x.mean(over, keepdim=True)) / x.std(over, keepdim=True).clamp(min=floor)
