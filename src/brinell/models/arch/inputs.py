"""The input normalisation of a network, and the base class of all networks here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Inputs:
    """The normalisation of images in [0, 1].

    With `stored` the checkpoint holds mean and std as buffers mu and sigma; their shape is (3, 1, 1) with `flat`, else
    (1, 3, 1, 1). With `per_image` each image is normalised by its own mean and standard deviation.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    stored: bool = False
    flat: bool = False
    per_image: bool = False


def inputs_from(config: Mapping[str, Any] | None) -> Inputs:
    """Return the normalisation that a card's network configuration describes.

    >>> inputs_from({"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}).mean
    (0.5, 0.5, 0.5)
    """
    numbers: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in (config or {}).items()}
    return Inputs(**numbers)


class NormalizedNetwork(nn.Module):
    """The base class of the networks in this package; `normalised` applies the input normalisation."""

    mu: Tensor
    sigma: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        if inputs.mean is not None and inputs.std is not None:
            shape = (-1, 1, 1) if inputs.flat else (1, -1, 1, 1)
            for name, values in (("mu", inputs.mean), ("sigma", inputs.std)):
                # On the CPU even if the parameters are on the meta device, because checkpoints may lack these.
                column = torch.tensor(values, device="cpu", dtype=torch.float32).view(shape)
                self.register_buffer(name, column, persistent=inputs.stored)

    def extra_repr(self) -> str:
        """Return the normalisation as text for the module's repr, which enters the model's fingerprint."""
        return str(self.inputs)

    def normalised(self, x: Tensor) -> Tensor:
        if self.inputs.per_image:
            return _standardised(x)
        return x if self.inputs.mean is None else (x - self.mu) / self.sigma


def _standardised(x: Tensor) -> Tensor:
    """Standardise each image to mean 0 and standard deviation 1, with a lower bound for the deviation.

    Reference: Ding et al. 2020, MMA training; the lower bound is 1 / √(number of values).
    """
    over = tuple(range(1, x.ndim))
    floor = x[0].numel() ** -0.5
    return (x - x.mean(over, keepdim=True)) / x.std(over, keepdim=True).clamp(min=floor)
