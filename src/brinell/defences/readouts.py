"""Readouts for the binarization test of defences that do not end in a linear layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.defences.layers import squash
from brinell.reliability.binarization.readouts import LinearHeads, LinearReadout


@dataclass(frozen=True)
class SquashedHeads:
    """Readouts that squash one linear readout per layer by a saturated tanh; the logits are the mean over layers."""

    members: tuple[LinearHeads, ...]
    gains: tuple[Tensor, ...]
    widths: tuple[int, ...]
    stronger: bool

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        flat = squash(1.0, self.stronger)
        layers = zip(self.members, self.gains, f.split(list(self.widths), 1), strict=True)
        return torch.stack([flat(gain[at][:, None] * m.logits(part, at)) for m, gain, part in layers]).mean(0)

    def keep(self, index: Tensor) -> "SquashedHeads":
        members, gains = (m.keep(index) for m in self.members), (g[index] for g in self.gains)
        return SquashedHeads(tuple(members), tuple(gains), self.widths, self.stronger)

    def join(self, others: "list[Any]") -> "SquashedHeads":
        members = (m.join([o.members[i] for o in others]) for i, m in enumerate(self.members))
        gains = (torch.cat([g, *(o.gains[i] for o in others)]) for i, g in enumerate(self.gains))
        return SquashedHeads(tuple(members), tuple(gains), self.widths, self.stronger)


@dataclass(frozen=True)
class Squashed:
    """A readout that squashes the widest-margin readout of every layer by a tanh, like a vote or the bit of a code.

    At the boundary points the argument of the tanh is `gain`, so that the clean point lies where the tanh is flat. With
    `stronger` the tanh has the gradient 1 (BPDA).
    """

    gain: float
    stronger: bool
    name: str = "squashed linear"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> SquashedHeads:
        at = torch.arange(len(inner), device=inner.device)
        members, gains = [], []
        for i, b in zip(inner.split(widths, 2), boundary.split(widths, 2), strict=True):
            heads = LinearReadout().fit(i, b, [i.shape[2]])
            members.append(heads)
            gains.append(self.gain / heads.logits(b[:, 0].float(), at)[:, 1])
        return SquashedHeads(tuple(members), tuple(gains), tuple(widths), self.stronger)
