"""An ensemble of networks with averaged probabilities."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork


class Ensemble(NormalizedNetwork):
    """A network whose logits are the logarithm of the mean probability over its members.

    The published code returns probabilities. Their logarithm gives the same decisions and cross-entropy, and gradients
    that do not vanish. `names` are additional names under which checkpoints store the members.
    """

    def __init__(self, inputs: Inputs, members: Sequence[nn.Module], names: Sequence[str] = ()) -> None:
        super().__init__(inputs)
        for name, member in zip(names, members, strict=bool(names)):
            setattr(self, name, member)
        self.models = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalised(x)
        log_probabilities = torch.stack([torch.log_softmax(member(x), 1) for member in self.models])
        return log_probabilities.logsumexp(0) - math.log(len(self.models))


def ensemble(inputs: Inputs, member: Callable[[], nn.Module], n: int = 2, names: Sequence[str] = ()) -> Ensemble:
    """Make an ensemble of n networks of the same architecture."""
    return Ensemble(inputs, [member() for _ in range(n)], names)
