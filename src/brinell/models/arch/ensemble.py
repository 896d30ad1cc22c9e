"""Several networks whose probabilities are averaged."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork

__all__ = ["Ensemble"]


class Ensemble(NormalizedNetwork):
    """Logarithms of the mean of the members' probabilities.

    The publications return the probabilities themselves; their logarithm gives the same decisions and the same
    cross-entropy, and gradients that do not vanish. `names` are second names under which checkpoints hold the members.
    """

    def __init__(self, inputs: Inputs, members: Sequence[nn.Module], names: Sequence[str] = ()) -> None:
        super().__init__(inputs)
        for name, member in zip(names, members, strict=bool(names)):
            setattr(self, name, member)
        self.models = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.normalised(x)
        each = torch.stack([torch.log_softmax(member(seen), 1) for member in self.models])
        return each.logsumexp(0) - math.log(len(self.models))


def ensemble(inputs: Inputs, member: Callable[[], nn.Module], n: int = 2, names: Sequence[str] = ()) -> Ensemble:
    """An ensemble of n equal networks."""
    return Ensemble(inputs, [member() for _ in range(n)], names)
