"""The exponential moving average of the weights, which is evaluated and stored instead of the weights."""

import copy

import torch
from torch import Tensor, nn


def decay_at(decay: float, step: int) -> float:
    """Return the factor d in average ← d · average + (1 − d) · weights after step number `step` (from 0).

    In the first steps d is less than `decay`, so that the initial weights soon have no influence.

    >>> [round(decay_at(0.999, t), 2) for t in (0, 90, 10**6)]
    [0.1, 0.91, 1.0]
    """
    return min(decay, (1 + step) / (10 + step))


class WeightAverage:
    """A copy of a module whose parameters and floating-point buffers are exponential averages; other buffers are equal.

    Batch-normalisation statistics depend on the weights. While the learning rate is high, the statistics of the last
    steps do not match the averaged weights, so the statistics are averaged in the same way.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self._kept, self._live = _floating(self.module), _floating(module)
        self._source = module

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after step number `step`."""
        torch._foreach_lerp_(self._kept, self._live, 1 - decay_at(self.decay, step))

    @torch.no_grad()
    def averaged(self) -> nn.Module:
        """Return the module with the averaged weights, in evaluation mode."""
        for kept, live in zip(self.module.buffers(), self._source.buffers(), strict=True):
            if not kept.is_floating_point():
                kept.copy_(live)
        return self.module


def _floating(module: nn.Module) -> list[Tensor]:
    return [v for v in (*module.parameters(), *module.buffers()) if v.is_floating_point()]
