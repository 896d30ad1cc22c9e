"""A running average of the weights: what is evaluated and kept."""

import copy

import torch
from torch import Tensor, nn


def decay_at(decay: float, step: int) -> float:
    """How much of the average stays at the update after step number `step` (from 0).

    In the first steps less than `decay`, so that the initial weights are soon forgotten.

    >>> [round(decay_at(0.999, t), 2) for t in (0, 90, 10**6)]
    [0.1, 0.91, 1.0]
    """
    return min(decay, (1 + step) / (10 + step))


class Average:
    """A copy of a module whose parameters and statistics are exponential averages; other buffers are copied.

    The statistics of batch normalisation belong to the weights they were taken with. While the learning rate is high
    those of the last few steps do not fit the averaged weights, so they are averaged in the same way.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self._kept, self._live = _floating(self.module), _floating(module)
        self._source = module

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step number `step`."""
        torch._foreach_lerp_(self._kept, self._live, 1 - decay_at(self.decay, step))

    @torch.no_grad()
    def settle(self) -> nn.Module:
        """The averaged module, ready to be evaluated."""
        for kept, live in zip(self.module.buffers(), self._source.buffers(), strict=True):
            if not kept.is_floating_point():
                kept.copy_(live)
        return self.module


def _floating(module: nn.Module) -> list[Tensor]:
    return [v for v in (*module.parameters(), *module.buffers()) if v.is_floating_point()]
